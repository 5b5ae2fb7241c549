/* madvise by an instruction of the program's own, as the Go runtime calls it: what it discards reads
 * as zeros, whether the pages were resident or had left. The rest is as it was. */
#include "hazard.h"

enum { THREADS = 4, PIECES = 16, ROUNDS = 3 };

static char *part_of(char *part, int n)
{
    return part + n * (hazard_bytes() / THREADS / PIECES / PAGE * PAGE);
}

/* Fills a part of its own, discards every second piece of it, and checks all pieces. */
static void *discards(void *own)
{
    char *part = own;
    size_t piece = part_of(part, 1) - part;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (int n = 0; n < PIECES; n++)
            fill(part_of(part, n), piece, round * PIECES + n);
        for (int n = 0; n < PIECES; n += 2)
            CHECK(bare_madvise(part_of(part, n), piece, MADV_DONTNEED) == 0);
        for (int n = 0; n < PIECES; n++)
            CHECK(n % 2 == 0 ? all_zero(part_of(part, n), piece) : holds(part_of(part, n), piece, round * PIECES + n));
    }
    return NULL;
}

static void with_threads(char *memory, size_t n)
{
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_create(&threads[t], NULL, discards, memory + t * (n / THREADS)) == 0);
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_join(threads[t], NULL) == 0);
}

int main(int argc, char **argv)
{
    size_t n = hazard_bytes();
    char *memory = map_private(n);
    with_threads(memory, n);
    /* In another image as in this one. */
    if (argc == 1) {
        execl("/proc/self/exe", argv[0], "again", NULL);
        CHECK(!"another image");
    }

    /* In a child as in its parent. */
    pid_t child = checked_fork();
    if (child == 0) {
        with_threads(memory, n);
        _exit(0);
    }
    reap(child);

    /* MADV_FREE may leave the contents, or zeros; written again, it is what was written. */
    fill(memory, n, 9);
    CHECK(bare_madvise(memory, n / 2, MADV_FREE) == 0);
    for (size_t word = 0; word < n / 2 / 8; word += PAGE / 8) {
        uint64_t found = ((volatile uint64_t *)memory)[word];
        CHECK(found == 0 || found == word_at(9, word));
    }
    fill(memory, n / 2, 10);
    CHECK(holds(memory, n / 2, 10));

    /* A file that is mapped over a page keeps what was stored to it: the kernel refuses to free that. */
    int file = memfd_create("file", 0);
    CHECK(file >= 0 && ftruncate(file, PAGE) == 0);
    char *over = mmap(memory, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0);
    CHECK(over == memory);
    fill(over, PAGE, 11);
    CHECK(bare_madvise(over, PAGE, MADV_FREE) == -EINVAL);
    CHECK(holds(over, PAGE, 11));
    memory += PAGE;

    /* What the kernel refuses it refuses. */
    CHECK(bare_madvise(memory + 1, PAGE, MADV_DONTNEED) == -EINVAL);
    CHECK(bare_madvise(memory, -2 * PAGE, MADV_DONTNEED) < 0);
    CHECK(bare_madvise(memory, 0, MADV_DONTNEED) == 0);
    CHECK(bare_madvise((void *)PAGE, 1ul << 40, MADV_DONTNEED) == -ENOMEM);
    return 0;
}
