/* Children of several generations store to pages of one shared mapping, each under a lock in that page, and
 * check what the others have stored. */
#include "hazard.h"

enum { WORDS = 512, STEP = 51, CHILDREN = 3, ROUNDS = 6000 };

struct page {
    _Atomic uint64_t lock;
    uint64_t version;
    uint64_t words[WORDS - 2];
};

static struct page *pages;
static size_t count;

static uint64_t word(size_t page, uint64_t version, int at)
{
    return page * 1000003 + version * 17 + at;
}

static void store(size_t at, uint64_t version)
{
    pages[at].version = version;
    for (int i = 0; i < WORDS - 2; i += STEP)
        pages[at].words[i] = word(at, version, i);
}

static void check(size_t at)
{
    for (int i = 0; i < WORDS - 2; i += STEP)
        if (pages[at].words[i] != word(at, pages[at].version, i)) {
            fprintf(stderr, "page %zu, word %d: another version than %lu\n", at, i, (unsigned long)pages[at].version);
            _exit(1);
        }
}

static void child(unsigned seed)
{
    pid_t grandchild = fork();
    seed += grandchild == 0 ? 1000 : 0;
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 1103515245 + 12345;
        size_t at = (seed >> 8) % count;
        uint64_t open = 0;
        while (!atomic_compare_exchange_weak(&pages[at].lock, &open, 1))
            open = 0;
        check(at);
        if (seed & 1)
            store(at, pages[at].version + 1);
        atomic_store(&pages[at].lock, 0);
    }
    int status = 0;
    if (grandchild > 0 && (waitpid(grandchild, &status, 0) != grandchild || status != 0))
        _exit(1);
    _exit(0);
}

int main(void)
{
    size_t size = hazard_bytes();
    count = size / sizeof(struct page);
    pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return perror("mmap"), 1;
    for (size_t at = 0; at < count; at++)
        store(at, 1);
    for (int i = 0; i < CHILDREN; i++)
        if (fork() == 0)
            child(i * 7919 + 13);
    int status;
    while (wait(&status) > 0)
        if (status != 0)
            return fprintf(stderr, "a child ended with %x\n", status), 1;
    uint64_t stores = 0;
    for (size_t at = 0; at < count; at++) {
        check(at);
        stores += pages[at].version - 1;
    }
    printf("%s\n", stores > CHILDREN * ROUNDS / 2 ? "whole" : "stores are missing");
    return 0;
}
