"""Counts words of a made-up sequence: arithmetic and a table that grows."""
import sys

steps = int(sys.argv[1])
table = {}
word = 1
check = 0
for step in range(steps):
    word = (word * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
    entry = table.get(word >> 42)
    if entry is None:
        table[word >> 42] = [step, str(word)]
    else:
        entry[0] += step
        check ^= int(entry[1]) + entry[0]
print(len(table), check, sum(entry[0] for entry in table.values()))
