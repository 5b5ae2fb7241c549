/* A program serves shared memory of its own by a userfaultfd, and the thread that serves it maps
 * and unmaps memory for each page and before it reads each event. Calls of other threads wait for
 * it in the kernel meanwhile: madvise and mlock for pages, munmap, mremap and MADV_REMOVE for its
 * reading of the event. The last one is on a range that has paged memory, too. */
#include "hazard.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

#define PAGES 16ul
#define SIZE (PAGES * PAGE)

static int events;

static void *serve(void *unused)
{
    struct pollfd ready = { .fd = events, .events = POLLIN };

    for (;;) {
        CHECK(poll(&ready, 1, -1) == 1);
        char *own = mmap(NULL, MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(own != MAP_FAILED);
        memset(own, 'x', PAGE);
        struct uffd_msg event;
        if (read(events, &event, sizeof event) == sizeof event && event.event == UFFD_EVENT_PAGEFAULT) {
            struct uffdio_copy copy = {
                .dst = event.arg.pagefault.address & ~(PAGE - 1),
                .src = (unsigned long)own,
                .len = PAGE,
            };
            CHECK(!ioctl(events, UFFDIO_COPY, &copy) || errno == EEXIST);
        }
        CHECK(!munmap(own, MB));
    }
    return unused;
}

static char *served(void *at)
{
    int file = memfd_create("served", MFD_CLOEXEC);
    CHECK(file >= 0 && !ftruncate(file, SIZE));
    char *memory = mmap(at, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), file, 0);
    CHECK(memory != MAP_FAILED && !close(file));
    struct uffdio_register range = {
        .range = { .start = (unsigned long)memory, .len = SIZE },
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    CHECK(!ioctl(events, UFFDIO_REGISTER, &range));
    return memory;
}

static void check(const char *memory)
{
    for (size_t page = 0; page < PAGES; page++)
        CHECK(memory[page * PAGE] == 'x');
}

int main(void)
{
    events = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (events < 0)
        return 77;
    struct uffdio_api api = {
        .api = UFFD_API,
        .features = UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP,
    };
    CHECK(!ioctl(events, UFFDIO_API, &api));
    pthread_t server;
    CHECK(!pthread_create(&server, NULL, serve, NULL));
    alarm(20);

    char *populated = served(NULL);
    CHECK(!madvise(populated, SIZE, MADV_POPULATE_READ));
    check(populated);
    CHECK(!madvise(populated, SIZE, MADV_REMOVE));
    CHECK(!munmap(populated, SIZE));

    char *locked = served(NULL);
    CHECK(!mlock(locked, SIZE));
    check(locked);
    char *moved = mremap(locked, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && !munmap(moved, 2 * SIZE));

    /* In the middle of paged memory. */
    char *around = mmap(NULL, 3 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(around != MAP_FAILED);
    memset(around, 'y', 3 * SIZE);
    char *inner = served(around + SIZE);
    CHECK(!madvise(around, 3 * SIZE, MADV_POPULATE_WRITE));
    check(inner);
    CHECK(!madvise(inner, SIZE, MADV_REMOVE));
    CHECK(!mlock(around, 3 * SIZE) && !munlock(around, 3 * SIZE));
    check(inner);
    CHECK(around[0] == 'y' && around[3 * SIZE - 1] == 'y');
    return 0;
}
