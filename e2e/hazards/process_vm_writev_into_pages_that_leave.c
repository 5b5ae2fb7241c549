/* process_vm_writev holds its target's pages without a lock while it reads its source. The
 * source is served by hand here: while the call waits for it, the target's memory is pushed
 * out, in another process and in this one. What was written must be there. */
#include "hazard.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

#define BYTES (16 * PAGE)

static int faults;
static char *source;
static pid_t target;
static char *into;

static void *write_over(void *arg)
{
    (void)arg;
    struct iovec from = {source, BYTES}, to = {into, BYTES};
    CHECK(process_vm_writev(target, &from, 1, &to, 1, 0) == (ssize_t)BYTES);
    return NULL;
}

/* A source that nothing is in until it is served. */
static int open_source(void)
{
    faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MISSING_SHMEM};
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api))
        return 0;
    int memory = memfd_create("source", MFD_CLOEXEC);
    CHECK(memory >= 0 && ftruncate(memory, BYTES) == 0);
    source = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(source != MAP_FAILED);
    struct uffdio_register all = {.range = {(uintptr_t)source, BYTES}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(ioctl(faults, UFFDIO_REGISTER, &all) == 0);
    close(memory);
    return 1;
}

static void serve(uint64_t seed)
{
    char *page = map_private(BYTES);
    fill(page, BYTES, seed);
    struct uffdio_copy copy = {.dst = (uintptr_t)source, .src = (uintptr_t)page, .len = BYTES};
    CHECK(ioctl(faults, UFFDIO_COPY, &copy) == 0);
    munmap(page, BYTES);
}

/* The source is empty again. */
static void empty(void)
{
    CHECK(madvise(source, BYTES, MADV_REMOVE) == 0);
}

static void push_out_twice(void)
{
    push_out();
    push_out();
}

static void begin(pthread_t *writer, pid_t process, char *at)
{
    target = process, into = at;
    CHECK(pthread_create(writer, NULL, write_over, NULL) == 0);
    struct pollfd waits = {faults, POLLIN, 0};
    CHECK(poll(&waits, 1, 60000) == 1);
    struct uffd_msg message;
    CHECK(read(faults, &message, sizeof message) == sizeof message);
}

int main(void)
{
    alarm(100);
    char *here = map_private(BYTES);
    int there[2], back[2];
    char byte = 0;
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = checked_fork();
    if (child == 0) {
        alarm(100);
        fill(here, BYTES, 1);
        for (int step = 0; step < 2; step++) {
            CHECK(write(back[1], &byte, 1) == 1 && read(there[0], &byte, 1) == 1);
            if (step == 0)
                push_out_twice();
        }
        _exit(holds(here, BYTES, 2) ? 0 : 1);
    }
    if (!open_source()) {
        fprintf(stderr, "a userfaultfd that serves the kernel's own faults needs privilege\n");
        kill(child, SIGKILL);
        return 77;
    }
    pthread_t writer;
    CHECK(read(back[0], &byte, 1) == 1);
    begin(&writer, child, here);
    CHECK(write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1);
    serve(2);
    CHECK(pthread_join(writer, NULL) == 0);
    CHECK(write(there[1], &byte, 1) == 1);
    reap(child);

    empty();
    fill(here, BYTES, 3);
    begin(&writer, getpid(), here);
    push_out_twice();
    serve(4);
    CHECK(pthread_join(writer, NULL) == 0);
    CHECK(holds(here, BYTES, 4));
    return 0;
}
