// The JSON of the norm lab's cards.
#include "lab/card.h"
#include "tests/fuzz/fuzz.h"

using namespace tapeformer;
using namespace tapeformer::lab;

const std::vector<std::string> seeds = {
    to_json(Card{.name = "leak",
                 .claim = "It leaks.",
                 .judgement = {Verdict::holds, {{"loss", {1, 2.5}}, {"one", {3}}}},
                 .seeds = 3,
                 .seconds = 1.5}),
    to_json(Card{.literature = "é \"x\"", .measured_here = false})};

FUZZ_TARGET(input) {
  only_errors([&] {
    const Card card = card_from_json(input);
    const std::string text = to_json(card);
    promise(to_json(card_from_json(text)) == text, "a card survives its JSON");
    to_text(card);
  });
}
