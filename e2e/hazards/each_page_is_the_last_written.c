/* Four threads write and read pages of their own in no order, each page with one writer, and compare every word
 * that they read with the last that they wrote: a page that is older, or another's, is a failure.
 *
 * With HAZARD_CONTROL, a file of at least 16 bytes, it goes on until the second word is not zero, and counts the pages in
 * the first; without, it makes a fixed number of accesses. Then every page is read once more. */
#include "hazard.h"

enum { THREADS = 4, ACCESSES = 20000, WORDS = 512 };
static char *memory;
static size_t pages;
/* The number of the last write of each page; it is not paged: a page's record must not share its fate. */
static uint64_t *written;
static _Atomic uint64_t *control;
static _Atomic uint64_t own_control[2];

static void check(size_t page)
{
    volatile uint64_t *w = (uint64_t *)(memory + page * PAGE);
    uint64_t number = written[page];
    for (size_t i = 0; i < WORDS; i++) {
        uint64_t expected = number ? word_at(mix(page) + number, i) : 0;
        if (w[i] != expected) {
            fprintf(stderr, "page %zu, word %zu: %016lx, not %016lx of write %lu\n", page, i, (unsigned long)w[i],
                    (unsigned long)expected, (unsigned long)number);
            CHECK(!"each page is the last written");
        }
    }
}

static void *body(void *arg)
{
    size_t id = (uintptr_t)arg, share = pages / THREADS;
    uint64_t random = mix(id);
    for (size_t made = 0;; made++) {
        if (own_control == control ? made == ACCESSES : atomic_load(control + 1) != 0)
            break;
        random = mix(random);
        size_t page = id * share + (random >> 8) % share;
        check(page);
        if (random & 1) {
            uint64_t number = ++written[page];
            fill(memory + page * PAGE, PAGE, mix(page) + number);
        }
        atomic_fetch_add(control, 1);
    }
    for (size_t page = id * share; page < (id + 1) * share; page++)
        check(page);
    return NULL;
}

int main(void)
{
    pages = hazard_bytes() / PAGE / THREADS * THREADS;
    memory = map_private(pages * PAGE);
    written = mmap(NULL, pages * sizeof *written, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(written != MAP_FAILED);
    control = own_control;
    const char *path = getenv("HAZARD_CONTROL");
    if (path) {
        int file = open(path, O_RDWR | O_CLOEXEC);
        CHECK(file >= 0);
        control = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        CHECK(control != MAP_FAILED);
    }
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, body, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    puts("each page is the last written");
    return 0;
}
