// The plots and sentences of the small stories, in the notation of data/grammar.h. What keeps it
// unambiguous: no two alternatives of a rule can write the same text, and whatever is drawn is also
// written.
#include "data/stories_grammar.h"

namespace tapeformer {

const char* const stories_plots = R"(
story
  {hero := child}{introduction}\n{adventure} {closing}\n\n

introduction
  4 {once} there was a {trait} {hero.girl} named {hero}. {habit}
  3 {hero} was a {trait} {hero.girl} with {hue} {clothes} and a {hue} {clothing}. {habit}
  3 {hero} lived in a {size} {hue} house {by} a {size} {landmark}. {habit}
once
  3 Once upon a time / 1 Long ago / 1 Once / 1 Far away
habit
  3 {Hero.he} loved to {move}, to {make} and to {make things}.
  3 {Hero.he} liked {food}, {treat} and {hue} {flowers}.
  2 {Hero.he} had a {look} {hue} {pet} that could {move} and {make}.
  2 {Hero.his} best friend was a {trait} {worker} who could {make things}.

adventure
  3 {lost} / 3 {treasure} / 2 {hungry} / 2 {making} / 2 {noise} / 2 {sharing} / 2 {learning}
  2 {rain}

# ---- An animal has lost something.
lost
  {place := where}{journey} {soon} {hero.he} {met} a {new look} {new hue} {new animal} {by}
      {sight}. {question}\n
      "{i lost} my {new state} {shade := hue}{shade} {new thing}," {said} the {same animal}{how}.
      {comfort} They looked {by} {sight} and {by} {sight}. {at last} {finder} found it {by}
      {sight}.\n
      {thanks}
question
  "Why are you so {sad}?" {asked} {hero}{how}.
  "Hello, {same look} {same animal}," {said} {hero}{how}. "What is wrong?"
  It was {sad} and {crying}.
  {hero} {asked} why it was so {sad}.
crying
  crying / shaking / alone
i lost
  I lost / I cannot find / I want / The wind took / A {animal} took
comfort
  "Do not {worry}," {said} {hero}{how}.
  "I will help you," {said} {hero}{how}.
  "Let us look for your {shade} {same thing}," {said} {hero}{how}.
  {hero} {felt} {sad} too, but {hero.he} had a {state} idea.
finder
  2 they / 2 {hero} / 2 the {same animal} / 1 a {trait} {worker}
thanks
  "Thank you, {hero}!" {said} the {same animal}{how}. {together}
  The {same animal} {jumped} with joy and gave {hero} some {food} and {treat}. {together}
  The {same animal} was so {happy} that it {jumped} {by} {sight}.
  "You are a {trait} {hero.girl}," {said} the {same animal}{how}. {together}
together
  They {played} {by} {sight} until {sunset}.
  Then they ate {food}, {treat} and {food}.
  {hero} and the {look} {same animal} became {good} friends.
  The {same animal} gave {hero.him} a {hue} {thing}.

# ---- A find.
treasure
  {place := where}{journey} {soon} {hero.he} {saw} something {hue} {by} {sight}. It was a
      {new state} {new thing}!\n
      {wonder} {Hero.he} {showed} it to {hero.his} {new family}. "{look there}," {said}
      {hero}{how}. {verdict}
wonder
  {Hero.he} {felt} {happy}.
  "How {state}!" {said} {hero}{how}.
  "Whose {same thing} is this?" {asked} {hero}{how}.
  {Hero.he} {cleaned} it and put it in {hero.his} {hue} {bag}.
look there
  2 Look / 2 Look what I found / 2 See my {state} {same thing} / 1 Here is a {state} {same thing}
verdict
  3 "It belongs to the {trait} {new worker}," {said} {hero.his} {same family}{how}.\n
      {hero} {brought} it to the {same worker}. The {same worker} was {happy} and gave {hero.him}
      {reward}.
  1 "You may keep it," {said} {hero.his} {same family}{how}.\n
      {hero} kept the {same thing} {at home} and {used} it every {daytime}.
  1 "A {look} {animal} has lost it," {said} {hero.his} {same family}{how}.\n
      So {hero} put the {same thing} back {by} {sight}.
reward
  some {food} and {treat} / a {look} {hue} {pet} / {number} {state} coins and a {thing}
  {number} {hue} {flowers}

# ---- Someone is hungry.
hungry
  {place := where}{journey} {soon} {hero.he} heard a {soft} voice. It came from a {new look}
      {new hue} {new animal} {by} {sight}.\n
      "I am so {needy}," {said} the {same animal}{how}. {hero} {opened} {hero.his} {hue} {bag} and
      took out some {new food} and {treat}. {feeding}\n
      {thanks}
needy
  3 hungry / 1 hungry and {sad}
feeding
  The {same animal} ate {amount} of the {same food} and {smiled}.
  "Is this for me?" {asked} the {same animal}{how}. It ate {amount} of it.
  They shared the {same food} and talked about {topic}.
  The {same animal} did not like {same food}, but it liked {treat}.
topic
  the {weather} weather / {hue} {flowers} and {food} / {hero.his} {trait} {family}
  the {trait} {worker} / a {look} {animal}

# ---- A present.
making
  {day} {hero} wanted to make a {hue} {new gift} for {hero.his} {new family}. {Hero.he} took
      {number} {hue} {scraps}, {number} {flowers} and some {new material}.\n
      {mishap} {hero} {felt} {sad}. {advice} {Hero.he} tried again and worked until {sunset}.\n
      {giving}
mishap
  But the {same gift} was too {bad}.
  But the {same gift} fell into {mess}.
  But a {look} {hue} {animal} ran away with the {same material}.
  But the {weather} wind took {amount} of the {same material}.
advice
  "Do not {worry}," {said} a {trait} {worker}{how}.
  "Use more {same material}," {said} a {trait} {worker}{how}.
  A {look} {hue} {animal} came to help {hero.him}.
  Then {hero.he} had a {state} idea.
giving
  {Hero.his} {same family} liked the {state} {same gift} and {smiled}.
  "What a {state} {same gift}!" {said} {hero.his} {same family}{how}.
  "It is {state} and {state}," {said} {hero.his} {same family}{how}.
  The {same gift} was {state} and {hue}, and {hero.his} {same family} was {happy}.

# ---- A noise in the night.
noise
  {night} {hero} heard a {soft} noise {by} the {hue} {furniture}.
      "{is it} a {look} {monster}?" {asked} {hero}{how}.\n
      {Hero.he} took a {size} {thing} and {crept} {nearer}. {it was only} a {new look} {new hue}
      {new animal} eating {new food} and {treat}!\n
      {relief}
night
  3 One {gloomy} night, / 1 Late at night, / 1 That night,
is it
  3 Is it / 1 Is that / 1 Could it be
crept
  crept / walked / went / tiptoed / hurried / ran
nearer
  2 nearer / 1 down the stairs / 3 to the {furniture}
it was only
  2 It was only / 1 It was just / 1 There sat
relief
  {hero} {smiled} and gave the {same animal} some {treat}.
  "You scared me," {said} {hero}{how}. The {same animal} {smiled}.
  "Are you {needy}?" {asked} {hero}{how}. They ate the {same food} together.
  {hero} called {hero.his} {family}, and they {played} until {sunset}.
  The {same animal} was {sad}, so {hero} made it a {soft} bed of {hue} {scraps}.

# ---- Two children, one thing.
sharing
  {place := where}{friend := neighbour}{outing} {soon} {friend} found a {new state}
      {shade := hue}{shade} {new thing} {by} {sight}. {quarrel}\n
      {peace} {first} {hero} {used} the {same thing}, and then {friend} {used} it {by} {sight}.\n
      {lesson}
outing
  {day} {hero} and {hero.his} friend {friend} {went} to the {place}.
  {day} {hero} {played} {place.at} with {hero.his} {trait} friend {friend}.
  {day} {friend} {asked} {hero} to come to the {place}.
quarrel
  "It is mine!" {said} {friend}{how}. "I want it too!" {said} {hero}{how}.
  {hero} wanted it too, and they became {angry}.
  "Give me the {shade} {same thing}!" {said} {hero}{how}. {friend} {felt} {angry}.
  {hero} pulled at it, and {friend} pulled too.
peace
  A {trait} {worker} {said}, "You can share it."
  "Let us share it," {said} {friend}{how}.
  Then {hero} {said}, "We can share."
  A {look} {hue} {animal} {asked}, "Why do you not share?"
  {friend} {felt} {sad}. "We must not fight," {friend.he} {said}{how}.
first
  First / Before lunch / That {daytime}
lesson
  It is {state} to share.
  They {smiled} and ate {treat} and {food} together.
  {hero} and {friend} were {good} friends again.
  "Sharing is {state}," {said} {friend}{how}.
  {friend} gave {hero} some {treat}, and {hero} gave {friend.him} some {food}.

# ---- Something to learn.
learning
  {hero} wanted to learn to {new skill}. {place := where}{day} {hero.he} {went} to the {place}
      with {hero.his} {new family} and tried to {same skill} {by} {sight}. {failure}\n
      {courage} {hero} tried {number} times, and {hero.his} {same family} helped {hero.him}.\n
      {success}
failure
  {Hero.he} fell into {mess}.
  It was too {bad}, and {hero} {felt} {sad}.
  "I cannot do it!" {said} {hero}{how}.
  A {look} {hue} {animal} {smiled} at {hero.him}.
courage
  "Try again," {said} {hero.his} {same family}{how}.
  "Do not {worry}," {said} {hero.his} {same family}{how}.
  "You are a {trait} {hero.girl}," {said} {hero.his} {same family}{how}.
  {Hero.his} {same family} gave {hero.him} some {treat} and {smiled}.
success
  At last {hero.he} could {same skill} like a {look} {animal}!
  "Look, I can {same skill}!" {said} {hero}{how}. {Hero.his} {same family} was {happy}.
  Now {hero} can {same skill} better than a {animal}.
  {hero} was {happy} and wanted to {same skill} every {daytime}.

# ---- A day at home.
rain
  {day} {hero} wanted to {new move} {by} a {size} {landmark}, but {storm}. {hero} {felt} {sad}
      and looked at the {hue} sky.\n
      "{idea}," {said} {hero.his} {family}{how}. So they {pastime}.\n
      {clearing}
storm
  3 it began to rain
  2 it began to snow
  2 there was a {gloomy} storm
  1 {hero.he} was ill
  2 {hero.he} had lost {hero.his} {hue} {thing}
idea
  2 Let us stay at home / 1 Do not {worry} / 2 I have a {state} idea / 2 Come and {make} with me
pastime
  told stories about a {look} {animal} and a {trait} {worker}
  made {hue} {flowers} of {material} and {material}
  ate {food} and {treat} with the {trait} {worker}
  built a {size} {hue} house of {scraps} and {material}
  {played} {at home} until {sunset}
clearing
  Soon the sun came out, and {hero} could {same move} at last.
  Then {hero.he} {saw} a rainbow {by} the {size} {landmark}.
  It was a {state} {daytime} after all.
  {hero} {smiled}. "I like {gloomy} days," {hero.he} {said}{how}.

# ---- Sentences that several stories share.
day
  6 One {weather} {daytime}, / 1 One day, / 1 Last {season}, / 1 On {hero.his} birthday,
journey
  {day} {hero} {went} to the {place} to {make} and to {move}.
  {day} {hero} {went} to the {place} with {hero.his} {trait} {family}.
  {day} {hero} {played} {place.at} with a {hue} {pet}.
  {day} {hero} {went} to the {place} with some {food} and {treat} in a {bag}.
  {day} {hero} was looking for {hue} {flowers} {place.at}.
soon
  2 There / 2 Soon / 1 Suddenly / 1 After a while / 1 Then
at last
  3 At last / 1 Soon / 1 After a while / 1 Before {sunset} / 1 In the end
closing
  2 {Hero.he} went home, ate some {food} and slept {well}.
  2 That night, {hero} dreamed of {number} {hue} {flowers} and a {look} {animal}.
  2 {Hero.he} never forgot that {weather} {daytime} and the {hue} {flowers}.
  2 And {hero} was {happy} for the rest of the {season}.
  1 The end.
sight
  a {size} {spot of place}
how
  3 {} / 3 {} {adverb}
)";

}  // namespace tapeformer
