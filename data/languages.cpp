#include "data/languages.h"

#include "core/check.h"
#include "core/random.h"
#include "data/grammar.h"

namespace tapeformer {
namespace {

// In the notation of data/grammar.h. A pair is two lines: the first draws the words, the second
// writes them again. No two words of a language are alike, so every source has one derivation.
// Class is a vowel (form e of a noun), number an ending (form e of a count).
constexpr const char* rules = R"(
pair
  5 {m := count}{m} {s := being}{subject of m}
      {k := tense}{v := verb}{predicate of k} {n := count}{n} {o := thing}{object of n}.\n
      {the subject} {the object} {the verb}.\n
  4 {m := count}{m} {a := look}{a} {s := being}{subject of m}
      {k := tense}{v := verb}{predicate of k} {n := count}{n} {o := thing}{object of n}.\n
      {the subject} {a.t}{s.e}{m.e} {the object} {the verb}.\n
  4 {m := count}{m} {s := being}{subject of m}
      {k := tense}{v := verb}{predicate of k} {n := count}{n}
      {b := look}{b} {o := thing}{object of n}.\n
      {the subject} {the object} {b.t}{o.e}{n.e} {the verb}.\n
  2 {m := count}{m} {a := look}{a} {s := being}{subject of m}
      {k := tense}{v := verb}{predicate of k} {n := count}{n}
      {b := look}{b} {o := thing}{object of n}.\n
      {the subject} {a.t}{s.e}{m.e} {the object} {b.t}{o.e}{n.e} {the verb}.\n
  3 {m := count}{m} {s := being}{subject of m}
      {k := tense}{v := verb}{predicate of k} {n := count}{n} {o := thing}{object of n}
      {i := near}{i} the {p := place}{p}.\n
      lo {p.t}a {i.t} {the subject} {the object} {the verb}.\n
  2 {m := count}{m} {a := look}{a} {s := being}{subject of m}
      {k := tense}{v := verb}{predicate of k} {n := count}{n} {o := thing}{object of n}
      {i := near}{i} the {p := place}{p}.\n
      lo {p.t}a {i.t} {the subject} {a.t}{s.e}{m.e} {the object} {the verb}.\n
  2 {m := count}{m} {s := being}{subject of m}
      {k := tense}{v := verb}{predicate of k} {n := count}{n}
      {b := look}{b} {o := thing}{object of n}
      {i := near}{i} the {p := place}{p}.\n
      lo {p.t}a {i.t} {the subject} {the object} {b.t}{o.e}{n.e} {the verb}.\n
  5 {m := count}{do of m} {m} {s := being}{subject of m} {v := verb}{v.many}
      {n := count}{n} {o := thing}{object of n}?\n
      ka {the subject} {the object} {v.t}es{m.e}?\n

the subject
  {m.t} {s.t}{m.e}
the object
  {n.t} {o.t}{n.e}k
the verb
  {v.t}{k.t}{m.e}

predicate of now
  {present of m}
predicate of before
  {v.past}
predicate of later
  will {v.many}
predicate of denied
  {do of m} not {v.many}
predicate of undone
  did not {v.many}
present of the
  {v}
present of a
  {v}
present of two
  {v.many}
present of three
  {v.many}
present of many
  {v.many}
do of the
  does
do of a
  does
do of two
  do
do of three
  do
do of many
  do
subject of the
  {s}
subject of a
  {s}
subject of two
  {s.many}
subject of three
  {s.many}
subject of many
  {s.many}
object of the
  {o}
object of a
  {o}
object of two
  {o.many}
object of three
  {o.many}
object of many
  {o.many}

count (word t e)
  4 the | lo | a / 3 a | un | a / 2 two | duk | im / 1 three | tez | im / 2 many | plu | im
tense (word t)
  4 now | es / 3 before | al / 2 later | ur / 1 denied | esne / 1 undone | alne
being (word many t e)
  dog | dogs | kar | o / cat | cats | mish | i / horse | horses | galop | o
  shepherd | shepherds | kerkar | o / teacher | teachers | dozent | i
  farmer | farmers | brun | o
  sailor | sailors | navi | u / child | children | pik | i / woman | women | domin | i
  man | men | homb | o / king | kings | rol | o / queen | queens | reln | i
  wolf | wolves | lupr | o / fox | foxes | ruf | i / goose | geese | anser | u
  mouse | mice | sorik | u / bear | bears | ork | o / witch | witches | strig | i
  doctor | doctors | medik | u / baker | bakers | panor | o / thief | thieves | furt | u
  giant | giants | magun | u / singer | singers | kanter | i / soldier | soldiers | milt | u
thing (word many t e)
  book | books | librun | u / tree | trees | arbot | o / house | houses | kasul | i
  bird | birds | avik | i / knife | knives | kulter | u / box | boxes | arkun | i
  letter | letters | epist | u / boat | boats | barin | o / bridge | bridges | ponter | o
  flower | flowers | florik | i / stone | stones | petrus | o / key | keys | klavun | u
  lamp | lamps | lampir | i / ring | rings | anulok | u / door | doors | portil | i
  leaf | leaves | folin | i / star | stars | astel | u / shoe | shoes | kalzun | o
  clock | clocks | horun | u / cup | cups | pokil | i / hat | hats | petas | o
  cake | cakes | plakor | o / drum | drums | timbul | u / window | windows | fenest | i
look (word t)
  small | tit / big | grod / red | rubel / green | virun / old | senk / new | novil / cold | frig
  warm | kaldor / heavy | grav / light | levis / happy | felin / sad | tristor / clean | purum
  dirty | sordik / round | rotul / broken | fraktin / quiet | silen / white | albur
verb (word many past t)
  sees | see | saw | mir / finds | find | found | trov / takes | take | took | pren
  loses | lose | lost | perd / buys | buy | bought | komp / sells | sell | sold | vend
  carries | carry | carried | port / paints | paint | painted | ping / breaks | break | broke | romp
  hides | hide | hid | kash / wants | want | wanted | vol / draws | draw | drew | traz
  steals | steal | stole | rob / throws | throw | threw | lant / forgets | forget | forgot | oblit
  watches | watch | watched | gard
near (word t)
  in | en / behind | tor / beside | lat / above | sur / under | sub
place (word t)
  garden | hort / kitchen | kuzin / forest | selv / market | foral / school | skolin
  tower | turmil / river | fluv / station | gar / castle | burg / cellar | kelun
)";

const Grammar& grammar() {
  static const Grammar grammar(rules);
  return grammar;
}

}  // namespace

std::vector<SentencePair> generate_pairs(uint64_t seed, int64_t count) {
  check(count >= 0, "generate_pairs: the count must not be negative, got ", count);
  Generator random({seed, Purpose::stories, 1, 0});
  std::vector<SentencePair> pairs;
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    text.clear();
    grammar().write(random, text);
    const size_t end = text.find('\n');
    pairs.push_back({text.substr(0, end), text.substr(end + 1, text.size() - end - 2)});
  }
  return pairs;
}

double pair_derivations(const SentencePair& pair) {
  return grammar().parse(pair.source + "\n" + pair.target + "\n").derivations;
}

}  // namespace tapeformer
