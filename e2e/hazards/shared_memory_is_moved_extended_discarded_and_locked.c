/* What system calls do to shared anonymous memory, seen by the process that makes them and by its child. */
#include "hazard.h"

static size_t pages;

static char *fresh(size_t count)
{
    char *at = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void put(char *at, size_t first, size_t count, uint64_t salt)
{
    for (size_t page = first; page < first + count; page++)
        *(uint64_t *)(at + page * PAGE + 8 * (page % 512)) = page ^ salt;
}

/* Pages of an object from `first` on, at `at`. */
static int has(const char *at, size_t first, size_t count, uint64_t salt)
{
    for (size_t page = first; page < first + count; page++)
        if (*(const uint64_t *)(at + (page - first) * PAGE + 8 * (page % 512)) != (page ^ salt))
            return 0;
    return 1;
}

static int is_zero(const char *at, size_t count)
{
    for (size_t page = 0; page < count; page++)
        for (size_t word = 0; word < 512; word += 7)
            if (((const uint64_t *)(at + page * PAGE))[word] != 0)
                return 0;
    return 1;
}

/* Pushes what is not in use out of the frames. */
static void press(void)
{
    static char *other;
    if (!other)
        other = fresh(pages);
    put(other, 0, pages, 99);
    CHECK(has(other, 0, pages, 99));
}

static void in_child(void (*part)(void *), void *arg)
{
    pid_t pid = fork();
    if (pid == 0) {
        part(arg);
        _exit(0);
    }
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void holds_one(void *at) { CHECK(has(at, 0, pages, 1)); }
static void holds_upper(void *at) { CHECK(has(at, pages / 2, pages / 2, 1)); }

static void moves(void)
{
    char *old = fresh(pages);
    put(old, 0, pages, 1);
    press();
    char *to = mmap(NULL, 2 * pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *at = mremap(old, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    CHECK(at == to && has(at, 0, pages, 1));
    in_child(holds_one, at);
    /* A second mapping of the same memory, and one that the pages leave. */
    char *twin = mremap(at, 0, pages * PAGE, MREMAP_MAYMOVE);
    CHECK(twin != MAP_FAILED && twin != at);
    press();
    CHECK(has(twin, 0, pages, 1));
    put(twin, 0, 100, 2);
    CHECK(has(at, 0, 100, 2));
    put(at, 0, 100, 1);
    in_child(holds_one, twin);
    char *left = mremap(twin, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    if (left != MAP_FAILED) {
        press();
        CHECK(has(left, 0, pages, 1) && has(twin, 0, pages, 1));
        CHECK(munmap(left, pages * PAGE) == 0);
    } else {
        CHECK(errno == EINVAL);
    }
    CHECK(munmap(twin, pages * PAGE) == 0);
    /* Cut, grown again: what lies there still has its contents. */
    size_t half = pages / 2;
    CHECK(mremap(at, pages * PAGE, half * PAGE, 0) == at);
    press();
    at = mremap(at, half * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED && has(at, 0, pages, 1));
    /* The lower half goes; the upper is what it was. */
    CHECK(munmap(at, half * PAGE) == 0);
    press();
    in_child(holds_upper, at + half * PAGE);
    CHECK(munmap(at + half * PAGE, half * PAGE) == 0);
}

static void discards(void)
{
    char *at = fresh(pages);
    put(at, 0, pages, 1);
    press();
    /* A mapping's own pages may go; the memory stays. */
    CHECK(madvise(at, pages * PAGE, MADV_DONTNEED) == 0);
    CHECK(has(at, 0, pages, 1));
    CHECK(madvise(at + 16 * PAGE, 300 * PAGE, MADV_REMOVE) == 0);
    CHECK(has(at, 0, 16, 1) && is_zero(at + 16 * PAGE, 300));
    CHECK(has(at + 316 * PAGE, 316, pages - 316, 1));
    press();
    CHECK(is_zero(at + 16 * PAGE, 300));
    put(at, 16, 300, 1);
    press();
    in_child(holds_one, at);
    /* The same for pages that were never evicted. */
    CHECK(has(at, 0, 64, 1));
    CHECK(madvise(at, 64 * PAGE, MADV_REMOVE) == 0 && is_zero(at, 64));
    /* Refused where pages are locked: the rest stays. */
    put(at, 0, 64, 1);
    CHECK(mlock(at + 40 * PAGE, PAGE) == 0);
    press();
    CHECK(madvise(at, 128 * PAGE, MADV_REMOVE) == -1 && errno == EINVAL);
    CHECK(is_zero(at, 40) && has(at + 40 * PAGE, 40, pages - 40, 1));
    press();
    CHECK(is_zero(at, 40) && has(at + 40 * PAGE, 40, pages - 40, 1));
    CHECK(munmap(at, pages * PAGE) == 0);
}

static void protects(void)
{
    char *at = fresh(pages);
    put(at, 0, pages, 1);
    CHECK(mprotect(at, pages * PAGE, PROT_READ) == 0);
    press();
    CHECK(has(at, 0, pages, 1));
    CHECK(mprotect(at + 8 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
    put(at, 8, 8, 2);
    press();
    CHECK(has(at + 8 * PAGE, 8, 8, 2) && has(at + 16 * PAGE, 16, 8, 1));
    /* A child that does not inherit a part reads the rest. */
    CHECK(madvise(at + 32 * PAGE, 32 * PAGE, MADV_DONTFORK) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        press();
        CHECK(has(at + 64 * PAGE, 64, pages - 64, 1) && has(at + 16 * PAGE, 16, 16, 1));
        CHECK(mprotect(at + 32 * PAGE, 32 * PAGE, PROT_READ) == -1 && errno == ENOMEM);
        _exit(0);
    }
    reap(pid);
    press();
    CHECK(has(at + 32 * PAGE, 32, 32, 1));
    CHECK(munmap(at, pages * PAGE) == 0);
}

static void locks(void)
{
    char *at = fresh(pages);
    put(at, 0, pages, 1);
    if (mlock(at + 64 * PAGE, 64 * PAGE) == 0) {
        press();
        unsigned char there[64];
        CHECK(mincore(at + 64 * PAGE, 64 * PAGE, there) == 0);
        for (int page = 0; page < 64; page++)
            CHECK(there[page] & 1);
        CHECK(munlock(at + 64 * PAGE, 64 * PAGE) == 0);
    } else {
        CHECK(errno == ENOMEM || errno == EPERM);
    }
    press();
    CHECK(has(at, 0, pages, 1));
    CHECK(munmap(at, pages * PAGE) == 0);
}

/* Mapped anew at the same addresses: nothing of the old memory shows. */
static void replaces(void)
{
    char *at = fresh(pages);
    put(at, 0, pages, 1);
    press();
    char *half = at + pages / 2 * PAGE;
    CHECK(mmap(half, pages / 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == half);
    CHECK(is_zero(half, pages / 2) && has(at, 0, pages / 2, 1));
    memset(half, 7, PAGE);
    CHECK(mmap(at, pages / 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    CHECK(is_zero(at, pages / 2) && half[9] == 7);
    for (int round = 0; round < 50; round++) {
        CHECK(munmap(at, pages * PAGE) == 0);
        at = fresh(pages);
        CHECK(is_zero(at + round * PAGE, 70));
        put(at, 0, 200, round);
        CHECK(has(at, 0, 200, round));
    }
    CHECK(munmap(at, pages * PAGE) == 0);
}

int main(void)
{
    pages = hazard_bytes() / PAGE;
    moves();
    discards();
    protects();
    locks();
    replaces();
    puts("as natively");
    return 0;
}
