// The things and words of the small stories, in the notation of data/grammar.h.
#include "data/stories_grammar.h"

namespace tapeformer {

const char* const stories_words = R"(
# ---- What is drawn once and used again.
child (name he him his girl)
  Lily | she | her | her | girl / Mia | she | her | her | girl / Anna | she | her | her | girl
  Zoe | she | her | her | girl / Ella | she | her | her | girl / Nora | she | her | her | girl
  Ruby | she | her | her | girl / Ivy | she | her | her | girl / Rose | she | her | her | girl
  Clara | she | her | her | girl / Maya | she | her | her | girl / Jane | she | her | her | girl
  Tess | she | her | her | girl / Sara | she | her | her | girl / Dora | she | her | her | girl
  Nina | she | her | her | girl / Tom | he | him | his | boy / Ben | he | him | his | boy
  Sam | he | him | his | boy / Max | he | him | his | boy / Leo | he | him | his | boy
  Finn | he | him | his | boy / Jack | he | him | his | boy / Hugo | he | him | his | boy
  Paul | he | him | his | boy / Will | he | him | his | boy / Carl | he | him | his | boy
  Rob | he | him | his | boy / Luke | he | him | his | boy / Noel | he | him | his | boy
  Bill | he | him | his | boy / Dan | he | him | his | boy
neighbour (name he him)
  Emma | she | her / Lucy | she | her / Molly | she | her / Tina | she | her / Ada | she | her
  Jill | she | her / Beth | she | her / Oscar | he | him / Noah | he | him / Peter | he | him
  Theo | he | him / Jim | he | him / Fred | he | him / Ned | he | him
where (place at)
  2 forest | in the forest
  2 garden | in the garden
  2 park | in the park
  2 beach | on the beach
  1 river | at the river
  1 farm | on the farm
  1 market | at the market
  1 hill | on the hill
  1 lake | at the lake
  1 castle | in the castle
spot of forest
  tree / log / bush / stone / stream / cave / fern / pine / stump / path / nest / hut
spot of garden
  rose / pear tree / fence / shed / bench / gate / pot / hedge / well / ladder / lawn / swing
spot of park
  bench / fountain / slide / swing / statue / pond / tree / gate / kiosk / bridge / lamp / sign
spot of beach
  sand castle / rock / boat / shell / net / palm tree / wave / parasol / chair / towel / pier
  crab
spot of river
  bridge / boat / reed / mill / stone / willow / raft / dam / bank / fish / ferry / rock
spot of farm
  barn / cart / haystack / stable / fence / well / sack / cow / tractor / trough / gate / coop
spot of market
  stand / cart / barrel / basket / tent / fountain / table / clown / scale / crate / bakery / van
spot of hill
  tree / rock / sheep / windmill / path / wall / thistle / cabin / tower / bench / flag / cross
spot of lake
  boat / reed / swan / hut / jetty / rock / birch / duck / canoe / tent / net / log
spot of castle
  throne / tower / knight / painting / moat / kitchen / door / staircase / hall / banner / cellar
  bell
animal
  2 rabbit / 2 mouse / 2 fox / 2 duck / 2 frog / 2 bear / 2 bird / 2 kitten / 2 puppy / 2 goat
  lamb / hedgehog / turtle / pony / deer / mole / snail / crow / swan / pig / beetle / badger
  hamster / parrot / squirrel / donkey / calf / crab / goose / panda / tiger / whale / lizard
  worm / bee / raven
thing
  2 ball / 2 kite / 2 hat / 2 book / 2 doll / 2 drum / 2 ring / 2 boat / scarf / key / bell / box
  cup / spoon / shoe / lamp / clock / basket / ribbon / whistle / flute / button / blanket
  mirror / coin / sock / glove / stone / shell / map / brush / pencil / rope / marble / bottle
  jug
hue
  2 red / 2 blue / 2 green / 2 yellow / white / black / brown / pink / grey / purple / golden
  silver / striped / spotted
look
  2 little / 2 big / 2 small / 2 tiny / round / funny / wet / sleepy / shy / fat / thin / muddy
  fluffy / noisy / young / grumpy / jolly / dusty / tame / proud
size
  2 big / 2 small / 2 tall / tiny / long / wide / crooked / narrow / dark / bright / dusty / mossy
  pretty / broken / quiet / heavy
state
  2 new / 2 pretty / 2 nice / lovely / shiny / fine / great / wonderful / special / strange
  perfect / magic / good / clever / rare / useful
family
  2 mother / 2 father / sister / brother / grandma / grandpa / cousin / aunt / uncle / nanny
worker
  baker / farmer / king / queen / teacher / doctor / sailor / painter / tailor / miller
  fisherman / postman / gardener / pirate / wizard / princess / cook / shepherd / nurse / judge
  clown / pilot / dentist / hunter
food
  2 bread / 2 cheese / 2 soup / nuts / berries / carrots / apples / rice / corn / beans / milk
  plums / pears / grapes / noodles / eggs / peas / figs / cherries / fish / melon / lettuce
  peaches / butter
material
  paper / wood / wool / cloth / clay / glue / paint / string / straw / sugar / wire / wax
gift
  cake / crown / card / puppet / pillow / necklace / chair / coat / picture / nest / lantern
  mask / sledge / poem / bowl / shawl
skill
  swim / whistle / dance / ski / juggle / climb / sail / skate / spell / yodel / fly a kite
  ride a bike / ride a pony / catch fish / paddle / bake bread
move
  2 run / 2 jump / swim / play / dance / climb / hop / skip / hide / roll / race / explore / dive
  march / slide / spin

# ---- Words.
make
  sing / draw / read / paint / cook / bake / sew / build / write / knit / count / whistle / laugh
  dream / carve / hum
make things
  bake {treat} / paint {flowers} / count {flowers} / cook {food} / draw {hue} {flowers}
  tell stories / collect {scraps} / play the {music}
music
  piano / violin / guitar / flute / drums / trumpet
trait
  kind / brave / clever / happy / curious / quiet / lonely / cheerful / friendly / lazy / busy
  careful / wise / merry / strong / gentle / polite / patient / bold / dreamy / honest / funny
  hungry / helpful
treat
  2 cake / 2 honey / 2 cookies / jam / pie / candy / pancakes / pudding / waffles / ice cream
  muffins / chocolate / cream / toast / donuts / syrup
flowers
  2 flowers / roses / tulips / daisies / leaves / stars / butterflies / balloons / clouds / birds
  lilies / poppies / lights / hats / fish / bees
clothes
  hair / shoes / boots / socks / trousers / gloves / slippers / sandals
clothing
  hat / coat / scarf / shirt / cap / jacket / belt / bow
pet
  2 dog / 2 cat / parrot / hamster / robot / hen / donkey / doll / horse / goldfish
landmark
  tree / river / hill / pond / bridge / mill / road / garden / church / tower / cave / well
  school / bakery / wall / lake
furniture
  door / window / bed / table / stove / shelf / chair / carpet / wardrobe / sofa / desk / clock
monster
  2 monster / 2 ghost / 2 dragon / giant / wolf / witch / thief / bat / snake / lion / robber
  troll
scraps
  buttons / ribbons / feathers / stones / sticks / beads / rags / shells / corks / nails / boxes
  stamps
bag
  2 bag / 2 pocket / basket / backpack / box / purse
mess
  the mud / the snow / the water / a {size} puddle / the grass / a {size} {landmark}
  some {flowers}
daytime
  day / morning / afternoon / evening
season
  summer / winter / spring / week / month / year
sunset
  sunset / dinner / dark / midnight / bedtime / the moon rose / breakfast / noon
weather
  2 sunny / warm / cold / rainy / windy / bright / foggy / hot / snowy / lovely / quiet / cloudy
  cool / stormy / misty / mild
gloomy
  dark / windy / cold / rainy / stormy / wild / snowy / foggy
happy
  2 happy / 2 glad / proud / pleased / excited / surprised / thankful / merry / delighted
sad
  2 sad / 2 tired / afraid / lonely / unhappy / worried / cold / scared / bored / upset
angry
  2 angry / cross / mad / loud / furious / rude
bad
  small / hard / heavy / wet / soft / slow / difficult / thick
soft
  2 soft / 2 strange / small / quiet / low / funny / gentle / weak
good
  good / best / close / true / dear
worry
  2 worry / 2 cry / be {sad} / give up
amount
  all / most / half / some / a bit
number
  two / three / four / five / six / seven / ten / twenty
by
  near / behind / beside / by / next to / in front of / not far from
at home
  at home / in the kitchen / in {hero.his} room / on the {hue} {furniture}
well
  well / until {sunset} / deeply / like a {look} {animal}
went
  2 went / walked / ran / hurried / rode / came / hiked
played
  2 played / sang / danced / talked / ran / rested / sat / waited
met
  met / saw / noticed / found
saw
  saw / found / noticed / discovered
showed
  showed / gave / brought / took
brought
  brought / took / carried / gave
used
  played with / tried / used / held / cleaned / kissed
cleaned
  washed / cleaned / dried / lifted / polished
opened
  opened / looked in / reached into
jumped
  2 jumped / danced / hopped / laughed / cried / sang / shouted
smiled
  2 smiled / 2 laughed / nodded / giggled / clapped / winked / waved
felt
  2 felt / was / became / looked
said
  4 said / cried / called / whispered / answered / shouted
asked
  4 asked / whispered / called / said
adverb
  softly / quickly / sadly / kindly / slowly / loudly / at once / again / politely / gently
  proudly / shyly / happily / bravely / quietly / with a smile
)";

}  // namespace tapeformer
