/* Memory that was unmapped is not there for any call, and looking for it, by a touch or by a
 * call, leaves no trace: nothing else comes to lie there, and the program can have it back. */
#include "hazard.h"

static sigjmp_buf back;
static volatile int code;
static void handler(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)context;
    code = info->si_code;
    siglongjmp(back, 1);
}

/* The code of the SIGSEGV that a use gets. */
static int touched(char *p)
{
    code = 0;
    if (sigsetjmp(back, 1) == 0)
        *(volatile char *)p;
    return code;
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    unsigned char there[64];
    char *p = map_private(64 * PAGE);
    fill(p, 64 * PAGE, 1);
    CHECK(mincore(p, 64 * PAGE, there) == 0);
    CHECK(msync(p, 64 * PAGE, MS_ASYNC) == 0);
    CHECK(munmap(p + 8 * PAGE, 8 * PAGE) == 0);

    CHECK(mincore(p, 8 * PAGE, there) == 0);
    CHECK(mincore(p, 64 * PAGE, there) == -1 && errno == ENOMEM);
    CHECK(mincore(p + 8 * PAGE, PAGE, there) == -1 && errno == ENOMEM);
    CHECK(mincore(p + 1, PAGE, there) == -1 && errno == EINVAL);
    CHECK(mincore(p, PAGE, NULL) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_mincore, p + 15 * PAGE, 2 * PAGE, there) == -1 && errno == ENOMEM);
    CHECK(msync(p, 64 * PAGE, MS_SYNC) == -1 && errno == ENOMEM);
    CHECK(msync(p + 9 * PAGE, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
    CHECK(syscall(SYS_msync, p + 9 * PAGE, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
    CHECK(msync(p + 9 * PAGE, PAGE, MS_ASYNC | MS_SYNC) == -1 && errno == EINVAL);
    CHECK(msync(p + 9 * PAGE + 1, PAGE, MS_ASYNC) == -1 && errno == EINVAL);
    CHECK(msync(p + 9 * PAGE, 0, MS_ASYNC) == 0);
    CHECK(madvise(p + 9 * PAGE, PAGE, MADV_WILLNEED) == -1 && errno == ENOMEM);

    /* Looked for by calls and by touches. */
    int null = open("/dev/null", O_WRONLY), zero = open("/dev/zero", O_RDONLY), ends[2];
    CHECK(null >= 0 && zero >= 0 && pipe(ends) == 0);
    for (int i = 8; i < 16; i++) {
        char *at = p + i * PAGE;
        char byte;
        struct iovec from = {at, 1}, to = {&byte, 1};
        CHECK(write(ends[1], at, 1) == -1 && errno == EFAULT);
        CHECK(read(zero, at, PAGE) == -1 && errno == EFAULT);
        CHECK(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == -1 && errno == EFAULT);
        if (i % 2)
            CHECK(touched(at) == SEGV_MAPERR);
    }
    /* Small mappings of files, which may come to lie there: each is its own, and goes when it
     * is unmapped. */
    for (int i = 8; i < 16; i++) {
        int file = memfd_create("page", 0);
        CHECK(file >= 0 && ftruncate(file, PAGE) == 0 && pwrite(file, &i, sizeof i, 0) == sizeof i);
        char *at = mmap(p + i * PAGE, PAGE, PROT_READ, MAP_SHARED, file, 0);
        CHECK(at != MAP_FAILED && close(file) == 0);
        CHECK(*(volatile int *)at == i);
        CHECK(munmap(at, PAGE) == 0 && touched(at) == SEGV_MAPERR);
    }
    char *q = mmap(p + 8 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(q == p + 8 * PAGE && all_zero(q, 8 * PAGE));
    fill(q, 8 * PAGE, 2);
    push_out();
    CHECK(holds(q, 8 * PAGE, 2));
    CHECK(holds(p, 8 * PAGE, 1) && mincore(p, 64 * PAGE, there) == 0);
    return 0;
}
