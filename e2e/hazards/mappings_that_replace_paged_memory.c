/* Mappings of a file, of locked and of huge pages at addresses of paged memory. One that fails leaves what lay
 * there; one that succeeds counts once against the limits, and replaces whole pages of its own size. */
#include "hazard.h"

#define HUGE (2 * MB)

enum { HUGE_PAGES = 3 };

static const char *overcommit = "/proc/sys/vm/nr_overcommit_hugepages";
static long before;

static long read_number(const char *path)
{
    long n = -1;
    FILE *f = fopen(path, "r");
    if (f) {
        CHECK(fscanf(f, "%ld", &n) == 1);
        fclose(f);
    }
    return n;
}

static int write_number(const char *path, long n)
{
    char text[32];
    int len = snprintf(text, sizeof text, "%ld", n), fd = open(path, O_WRONLY);
    int written = fd >= 0 && write(fd, text, len) == len;
    close(fd);
    return written;
}

static void restore(void)
{
    write_number(overcommit, before);
}

static char *huge_at(char *at, size_t bytes)
{
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_FIXED, -1, 0);
}

/* Returns true if the machine gives that many huge pages, beyond those it has. */
static int huge_pages_are_there(void)
{
    before = read_number(overcommit);
    if (before < 0 || (before < HUGE_PAGES && !write_number(overcommit, HUGE_PAGES)))
        return 0;
    atexit(restore);
    char *p = mmap(NULL, HUGE_PAGES * HUGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);
    return p != MAP_FAILED && munmap(p, HUGE_PAGES * HUGE) == 0;
}

static void huge_mappings(char *memory, size_t bytes)
{
    char *at = (char *)(((uintptr_t)memory + HUGE - 1) & ~(HUGE - 1));
    size_t front = at - memory;

    /* Refused for its address. */
    CHECK(huge_at(at + PAGE, HUGE) == MAP_FAILED && errno == EINVAL);
    CHECK(holds(memory, bytes, 1));
    if (!huge_pages_are_there())
        return;
    CHECK(huge_at(at + PAGE, HUGE) == MAP_FAILED && errno == EINVAL);
    CHECK(holds(memory, bytes, 1));

    /* All that there are. */
    CHECK(huge_at(at, HUGE_PAGES * HUGE) == at);
    CHECK(all_zero(at, HUGE_PAGES * HUGE));
    fill(at, HUGE_PAGES * HUGE, 2);
    CHECK(holds(at, HUGE_PAGES * HUGE, 2) && holds(memory, front, 1));
    CHECK(munmap(at, HUGE_PAGES * HUGE) == 0);

    /* A part of one is a whole one. */
    CHECK(mmap(at, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    fill(at, HUGE, 3);
    CHECK(huge_at(at, MB) == at);
    CHECK(all_zero(at, HUGE));
    fill(at, HUGE, 4);
    push_out();
    CHECK(holds(at, HUGE, 4));
    CHECK(munmap(at, HUGE) == 0);
    CHECK(mmap(at, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    CHECK(all_zero(at, HUGE));
}

/* By a user who may lock 96 KiB. */
static void locked_mappings(char *memory, size_t bytes)
{
    pid_t child = checked_fork();
    if (child > 0) {
        reap(child);
        return;
    }
    struct rlimit limit = {96 << 10, 96 << 10};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    CHECK(geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
    int file = memfd_create("file", 0), flags = MAP_SHARED | MAP_LOCKED | MAP_FIXED;
    CHECK(file >= 0 && ftruncate(file, MB) == 0);
    CHECK(mmap(memory, 128 << 10, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED && errno == EAGAIN);
    CHECK(holds(memory, bytes, 1));
    CHECK(mmap(memory, 64 << 10, PROT_READ | PROT_WRITE, flags, file, 0) == memory);
    CHECK(all_zero(memory, 64 << 10));
    fill(memory, 64 << 10, 5);
    CHECK(pread(file, memory + (64 << 10), 64 << 10, 0) == 64 << 10);
    CHECK(holds(memory + (64 << 10), 64 << 10, 5));
    _exit(0);
}

/* A file of huge pages: the kernel refuses an address within one, and changes nothing. */
static void huge_files(void)
{
    int file = memfd_create("huge", MFD_HUGETLB | MFD_CLOEXEC);
    if (file < 0)
        return;
    CHECK(ftruncate(file, 4 * MB) == 0);
    char *p = map_private(8 * MB);
    fill(p, 8 * MB, 5);
    char *at = (char *)(((uintptr_t)p + 2 * MB) & ~(2 * MB - 1)) + 4 * PAGE;
    int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
    CHECK(mmap(at, 2 * MB, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(holds(p, 8 * MB, 5));
    CHECK(munmap(p, 8 * MB) == 0 && close(file) == 0);
}

int main(void)
{
    alarm(100);
    size_t bytes = (HUGE_PAGES + 2) * HUGE;
    char *memory = map_private(bytes);
    fill(memory, bytes, 1);
    push_out();
    locked_mappings(memory, bytes);
    huge_mappings(memory, bytes);
    huge_files();
    return 0;
}
