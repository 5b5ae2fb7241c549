# Builds a dict, walks it in order and out of order, changes it, and prints digests of
# what it saw. argv: entries.
import hashlib
import sys

entries = int(sys.argv[1])
table = {i * 3: (i, f"value {i * 2654435761 % 1000003}") for i in range(entries)}

seen = hashlib.sha256()
for key, (i, text) in table.items():
    if i % 7 == 0:
        seen.update(str(key).encode())
        seen.update(text.encode())
print("in order", seen.hexdigest(), len(table))

x = 12345
total = 0
for _ in range(entries // 50):
    x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
    i = (x >> 33) % entries
    number, text = table[i * 3]
    assert number == i and text == f"value {i * 2654435761 % 1000003}", (i, number, text)
    total += number
print("at random", total)

for i in range(0, entries, 3):
    del table[i * 3]
for i in range(0, entries, 5):
    table[i * 3] = (-i, None)
print("changed", len(table), sum(number for number, _ in table.values()))
