/* mprotect to none, read-only and back: an access without the right gets SIGSEGV with
 * the true address, resident or paged out, and contents survive. */
#include "hazard.h"

static sigjmp_buf back;
static void *volatile at;
static volatile int code;
static void handler(int sig, siginfo_t *info, void *context)
{
    (void)context;
    CHECK(sig == SIGSEGV);
    at = info->si_addr;
    code = info->si_code;
    siglongjmp(back, 1);
}

static int write_faults(char *p)
{
    if (sigsetjmp(back, 1))
        return at == p && code == SEGV_ACCERR;
    *(volatile char *)p = 1;
    return 0;
}

static int read_faults(char *p)
{
    if (sigsetjmp(back, 1))
        return at == p && code == SEGV_ACCERR;
    (void)*(volatile char *)p;
    return 0;
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    size_t n = hazard_bytes() / 2;
    char *p = map_private(n);
    fill(p, n, 1);
    for (int round = 0; round < 2; round++) {
        if (round)
            push_out();
        CHECK(mprotect(p, n, PROT_READ) == 0);
        CHECK(write_faults(p + 123) && write_faults(p + n - 1) && write_faults(p + n / 2 + 5));
        CHECK(holds(p, n, 1));
        CHECK(mprotect(p + n / 4, n / 4, PROT_NONE) == 0);
        CHECK(read_faults(p + n / 4) && read_faults(p + n / 2 - 1) && write_faults(p + n / 4 + PAGE));
        CHECK(holds(p, n / 4, 1));
        /* A system call gets EFAULT, not a signal. */
        int pipe_of[2];
        CHECK(pipe(pipe_of) == 0);
        CHECK(write(pipe_of[1], p + n / 4, 10) == -1 && errno == EFAULT);
        CHECK(write(pipe_of[1], p + 100, 10) == 10);
        CHECK(read(pipe_of[0], p + 200, 10) == -1 && errno == EFAULT);
        close(pipe_of[0]), close(pipe_of[1]);
        push_out();
        CHECK(mprotect(p, n, PROT_READ | PROT_WRITE) == 0);
        CHECK(holds(p, n, 1));
        fill(p, n, 1);
    }
    /* Page by page, as debuggers and garbage collectors do: many small areas. */
    for (size_t i = 0; i < 500; i++)
        CHECK(mprotect(p + i * 2 * PAGE, PAGE, i % 2 ? PROT_READ : PROT_NONE) == 0);
    push_out();
    for (size_t i = 0; i < 500; i++) {
        CHECK(write_faults(p + i * 2 * PAGE));
        *(volatile uint64_t *)(p + (i * 2 + 1) * PAGE) = word_at(1, (i * 2 + 1) * 512);
    }
    CHECK(mprotect(p, n, PROT_READ | PROT_WRITE) == 0);
    CHECK(holds(p, n, 1));
    CHECK(mprotect(p, -1ul, PROT_READ) == -1 && errno == ENOMEM);
    /* Executable memory: code written, protected, run, paged out, run again. */
    static const unsigned char ret42[] = {0xb8, 42, 0, 0, 0, 0xc3};
    memcpy(p, ret42, sizeof ret42);
    CHECK(mprotect(p, PAGE, PROT_READ | PROT_EXEC) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(((int (*)(void))p)() == 42);
        push_out();
    }
    return 0;
}
