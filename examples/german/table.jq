# Records of vg evaluate-matcher as a table: a row per language and recipe, the mean of its seeds.
def mean: (add / length * 10 | round) / 10 | tostring | if test("[.]") then . else . + ".0" end;
def part($key): map(getpath($key)) | mean;
def ends($key): . as $runs | [0, 1] | map(. as $k | $runs | map(getpath($key)[$k]) | mean) | join(" to ");
def title: .run | split("/")[-1] | sub("[.]s[0-9]+$"; "") | sub("[.]"; " ");
"| recipe (seeds) | caption R@10 | content words R@10 | concept | one photo for all words | photos dealt out | R@10, untrained |",
"| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
(group_by(title)[] | "| \(.[0] | title) (\(length)) | \(part(["caption", "r10"])) (\(ends(["interval", "caption", "r10"])))"
  + " | \(part(["content", "r10"])) | \(part(["concept"])) (\(ends(["interval", "concept"])))"
  + " | \(part(["blind", "best_voken"])) | \(part(["blind", "permuted"])) | \(part(["untrained", "caption", "r10"])) |"),
"", "Percent, with 95 % intervals over \(.[0].images) photos that no training saw; chance: R@10 \(.[0].chance.r10).", ""
