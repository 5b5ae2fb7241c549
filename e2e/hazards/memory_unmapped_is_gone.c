/* A use after munmap gets SIGSEGV with SEGV_MAPERR, wherever the page was; new memory at
 * the same place is zero; MAP_FIXED over paged memory replaces it; holes are holes. */
#include "hazard.h"

static sigjmp_buf back;
static volatile int code;
static void *volatile at;
static void handler(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)context;
    code = info->si_code;
    at = info->si_addr;
    siglongjmp(back, 1);
}

static int gone(char *p)
{
    if (sigsetjmp(back, 1))
        return code == SEGV_MAPERR && at == p;
    (void)*(volatile char *)p;
    return 0;
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    struct churn churn[1];
    churn_start(churn, 1);
    size_t n = hazard_bytes() / 4;
    for (int round = 0; round < 3; round++) {
        char *p = map_private(n);
        fill(p, n, round);
        CHECK(munmap(p + n / 4, n / 4 + PAGE) == 0);
        CHECK(gone(p + n / 4) && gone(p + n / 2) && gone(p + n / 4 + 5 * PAGE + 7));
        CHECK(holds(p, n / 4, round));
        /* Back at the same place: zeros, not what was there, resident or stored. */
        char *q = mmap(p + n / 4, n / 4 + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        CHECK(q == p + n / 4);
        CHECK(all_zero(q, n / 4 + PAGE));
        CHECK(mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
        /* MAP_FIXED over what is mapped. */
        CHECK(mmap(p, n / 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
        CHECK(all_zero(p, n / 8));
        int file = open("/proc/self/exe", O_RDONLY);
        CHECK(mmap(p + n / 8, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == p + n / 8);
        CHECK(memcmp(p + n / 8, "\177ELF", 4) == 0);
        close(file);
        CHECK(munmap(p, n) == 0);
        CHECK(gone(p) && gone(p + n - 1));
        CHECK(munmap(p, n) == 0); /* Unmapping nothing succeeds. */
        CHECK(munmap(p + 1, n) == -1 && errno == EINVAL);
    }
    /* One munmap over several mappings with holes between them. */
    char *p = map_private(64 * MB);
    fill(p, 32 * MB, 3);
    for (int i = 0; i < 8; i++)
        CHECK(munmap(p + i * 4 * MB + MB, MB) == 0);
    CHECK(munmap(p, 32 * MB) == 0);
    CHECK(gone(p) && gone(p + 31 * MB));
    CHECK(all_zero(p + 32 * MB, 32 * MB));
    /* Thousands of small mappings come and go. */
    for (int i = 0; i < 3000; i++) {
        size_t bytes = (1 + i % 9) * PAGE;
        char *small = map_private(bytes);
        fill(small, bytes, i);
        CHECK(holds(small, bytes, i));
        if (i % 3)
            CHECK(munmap(small, bytes) == 0);
    }
    churn_stop(churn, 1);
    return 0;
}
