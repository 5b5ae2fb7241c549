"""Builds objects in a dict and groups them: pointers all over the heap."""
import sys


class Sale:
    __slots__ = ("customer", "product", "price")

    def __init__(self, customer, product, price):
        self.customer = customer
        self.product = product
        self.price = price


count = int(sys.argv[1])
word = 1
sales = {}
for _ in range(count):
    word = (word * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
    sales[word] = Sale((word >> 33) % 5003, "product-%d" % (word >> 20), (word >> 40) % 10007)

groups = {}
for sale in sales.values():
    groups.setdefault(sale.customer, []).append(sale)

for customer in sorted(groups)[::100]:
    group = groups[customer]
    print(customer, len(group), sum(s.price for s in group), max(s.product for s in group))
print(len(sales), len(groups), sum(s.price for g in groups.values() for s in g))
