/* selfpage run --fault-rate 40/10ms,tree=40 */
/* A timer's signals come faster than faults may. Each ends the sleep of a throttled fault, which begins
   anew: the thread still has its turn, and leaves no places of the tree behind that keep everybody waiting. */
#include "hazard.h"
#include <sys/time.h>

enum { PAGES = 6000, ACCESSES = 6000, MICROSECONDS = 125 };

static unsigned char *pages;
static volatile sig_atomic_t ticks;

static unsigned char expected(unsigned page) { return (unsigned char)(page * 7 + 1); }

static void on_tick(int signal) {
    (void)signal;
    ticks++;
}

int main(void) {
    pages = malloc((size_t)PAGES * 4096);
    CHECK(pages != NULL);
    for (unsigned page = 0; page < PAGES; page++)
        pages[(size_t)page * 4096] = expected(page);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, MICROSECONDS}, {0, MICROSECONDS}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    unsigned random = 1;
    for (int access = 0; access < ACCESSES; access++) {
        random = random * 1664525 + 1013904223;
        unsigned page = (random >> 8) % PAGES;
        CHECK(pages[(size_t)page * 4096] == expected(page));
    }
    struct itimerval never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    puts("every access had its turn");
    return 0;
}
