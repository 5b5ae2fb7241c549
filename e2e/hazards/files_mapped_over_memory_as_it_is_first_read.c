/* A thread reads fresh memory in order, and a file takes the place of each part as the reader comes there. What is written to
 * the file's mapping stays when the rest is unmapped. */
/* selfpage run --frames 256M */
#include "hazard.h"
#include <sys/syscall.h>

#define PART 512L /* pages */
#define PARTS 16L
#define ROUNDS 150

static volatile char *const base = (char *)0x320000000000;
static volatile long position, started, done;
static volatile int stop;

static void *reader(void *unused)
{
    for (long round = 1; !stop; round++) {
        while (started < round && !stop)
            ;
        for (long page = 0; page < PARTS * PART && !stop; page++) {
            position = page;
            (void)base[page * PAGE];
        }
        done = round;
    }
    return unused;
}

static void map_there(long page, long pages, int flags, int fd)
{
    char *at = (char *)base + page * PAGE;
    int access = PROT_READ | PROT_WRITE;
    off_t offset = fd < 0 ? 0 : page * PAGE;
    CHECK(mmap(at, pages * PAGE, access, MAP_PRIVATE | MAP_FIXED | flags, fd, offset) == at);
}

int main(void)
{
    unsigned seed = 1;
    int fd = (int)syscall(SYS_memfd_create, "file", 0);
    CHECK(fd >= 0 && ftruncate(fd, PARTS * PART * PAGE) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, reader, NULL) == 0);
    for (long round = 1; round <= ROUNDS; round++) {
        map_there(0, PARTS * PART, MAP_ANONYMOUS, -1);
        position = -1;
        started = round;
        for (long part = 0; part < PARTS; part++) {
            long near = part * PART - (long)(rand_r(&seed) % 3);
            while (position < near)
                ;
            for (volatile int spins = (int)(rand_r(&seed) % 4000); spins > 0; spins--)
                ;
            map_there(part * PART, PART, 0, fd);
            for (long page = 0; page < PART; page += 16)
                base[(part * PART + page) * PAGE] = 7;
        }
        while (done < round)
            ;
        for (long page = 0; page < PARTS * PART; page += 16)
            CHECK(base[page * PAGE] == 7);
        CHECK(munmap((void *)base, PARTS * PART * PAGE) == 0);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}
