/* A thread moves shared memory to and fro while another one forks. The child has all of it where it is at the moment of the
 * fork, and its reads change nothing for the parent. */
/* selfpage run --frames 24M */
#include "hazard.h"

#define PAGES 8192
#define FORKS 100

static volatile int stop;
static char *at[2];
static atomic_int place;

static void *mover(void *unused)
{
    size_t n = (size_t)PAGES * PAGE;
    for (int now = 0; !stop; now = !now) {
        char *moved = mremap(at[now], n, n, MREMAP_MAYMOVE | MREMAP_FIXED, at[!now]);
        CHECK(moved == at[!now]);
        place = !now;
        usleep(20);
    }
    return unused;
}

static long wrong(const char *from)
{
    long count = 0;
    for (long page = 0; page < PAGES; page++)
        count += ((const long *)(from + page * PAGE))[0] != page + 1;
    return count;
}

int main(void)
{
    size_t n = (size_t)PAGES * PAGE;
    at[0] = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at[0] != MAP_FAILED);
    for (long page = 0; page < PAGES; page++)
        ((long *)(at[0] + page * PAGE))[0] = page + 1;
    /* Where nothing else comes. */
    at[1] = (char *)0x300000000000;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, mover, NULL) == 0);
    for (int round = 0; round < FORKS; round++) {
        pid_t child = checked_fork();
        if (child == 0) {
            /* The mover is not here: the memory stays at one of the places. */
            unsigned char there;
            int second = mincore(at[1], PAGE, &there) == 0;
            _exit(wrong(at[second]) != 0);
        }
        CHECK(end_of(child) == 0);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(wrong(at[place]) == 0);
    return 0;
}
