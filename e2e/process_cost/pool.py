"""Has a pool of so many forked workers do so many tasks, and prints the seconds.

    pool.py WORKERS TASKS
"""

import multiprocessing
import sys
import time


def task(number):
    return sum(x * x % 7 for x in range(number % 50 * 400))


if __name__ == "__main__":
    workers, tasks = int(sys.argv[1]), int(sys.argv[2])
    begun = time.monotonic()
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        forked = time.monotonic() - begun
        total = sum(pool.map(task, range(tasks), chunksize=1))
    seconds = time.monotonic() - begun
    print(f"pool of {workers} CPython workers {seconds:6.2f} s, {forked:.2f} s of forks, sum {total}")
