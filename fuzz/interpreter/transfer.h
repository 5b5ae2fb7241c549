/* Operations that have the kernel read and write memory, or devices. Few pages each: a
 * pipe holds sixteen. */
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/sendfile.h>
#include <sys/shm.h>

#define FEW(pages) (1 + (unsigned long)(pages) % 8)

static int direct_of(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_DIRECT);
}

/* Reads a file into memory (flag 1: writes it from there), with flag 2 past the page
 * cache, with flag 4 by two vectors. */
OPERATION file_io(long number, long page, long pages, long file, long file_page, long flags)
{
    FIND_SPAN(span, number, page, FEW(pages));
    int fd = files[(unsigned long)file % FILES], own = -1;
    if (flags & 2) {
        fd = own = direct_of(files[(unsigned long)file % 2]);
        if (fd < 0) {
            result_of(-1);
            return;
        }
    }
    size_t length = span.pages * PAGE, half = flags & 4 ? span.pages / 2 * PAGE : 0;
    off_t offset = (unsigned long)file_page % FILE_PAGES * PAGE;
    if (flags & 1 && offset + length > (size_t)FILE_PAGES * PAGE)
        offset = 0;
    struct iovec vectors[2] = {{span.at, half}, {span.at + half, length - half}};
    result_of(flags & 1 ? pwritev(fd, vectors, 2, offset) : preadv(fd, vectors, 2, offset));
    if (own >= 0)
        close(own);
    sum_span(&span);
}

/* Moves pages through a pipe: 0 write and read, 1 vmsplice and read, 2 vmsplice, tee and
 * read, 3 sendfile and read, 4 vmsplice and splice to a file. */
OPERATION pipe_io(long number, long page, long pages, long to_number, long to_page, long how)
{
    FIND_SPAN(from, number, page, FEW(pages));
    FIND_SPAN(to, to_number, to_page, from.pages);
    /* A pipe may hold the pages themselves: what it then gives is undefined. */
    if (from.at < to.at + to.pages * PAGE && to.at < from.at + from.pages * PAGE) {
        result(" -");
        return;
    }
    int ends[2], others[2];
    if (pipe(ends) || pipe(others))
        _exit(6);
    struct iovec vector = {from.at, from.pages * PAGE};
    ssize_t there;
    how = (unsigned long)how % 5;
    if (how == 0)
        there = write(ends[1], from.at, from.pages * PAGE);
    else if (how == 3)
        there = sendfile(ends[1], files[0], &(off_t){0}, from.pages * PAGE);
    else
        there = vmsplice(ends[1], &vector, 1, 0);
    result_of(there);
    int out = ends[0];
    if (there > 0 && how == 2) {
        there = tee(ends[0], others[1], there, 0);
        result_of(there);
        out = others[0];
    }
    if (there > 0 && how == 4) {
        ssize_t moved = 0, n;
        while (moved < there && (n = splice(out, NULL, files[1], &(loff_t){moved}, there - moved, 0)) > 0)
            moved += n;
        result_of(moved);
    } else if (there > 0) {
        ssize_t length = there < to.pages * PAGE ? there : to.pages * PAGE;
        result_of(read(out, to.at, length));
    }
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(others[i]);
    }
    sum_span(&to);
}

/* Copies between a child's memory and this process's: 0 reads the child's, 1 writes it. */
OPERATION child_memory(long number, long page, long pages, long to_number, long to_page, long how)
{
    FIND_SPAN(theirs, number, page, FEW(pages));
    FIND_SPAN(ours, to_number, to_page, theirs.pages);
    int ends[2], child_number = ++log_children;
    if (pipe(ends))
        _exit(6);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        if (read(ends[0], &byte, 1) < 0)
            _exit(6);
        char path[64];
        memcpy(path, log_path, sizeof path);
        enter_part(path, child_number);
        begin_operation("child");
        sum_span(&theirs);
        end_operation();
        _exit(0);
    }
    close(ends[0]);
    struct iovec local = {ours.at, ours.pages * PAGE}, remote = {theirs.at, ours.pages * PAGE};
    if (child > 0)
        result_of(how & 1 ? process_vm_writev(child, &local, 1, &remote, 1, 0)
                          : process_vm_readv(child, &local, 1, &remote, 1, 0));
    close(ends[1]);
    int status = 0;
    if (child > 0 && waitpid(child, &status, 0) == child)
        result(" %x", status);
    sum_span(&ours);
}

/* Locks a page of a child's and reads and writes it by ptrace (0) or /proc (1). */
OPERATION trace_child(long number, long page, long how)
{
    FIND_SPAN(span, number, page, 1);
    pid_t child = fork();
    if (child == 0) {
        if (fault_of(read_byte, &(struct access){.at = span.at}))
            _exit(3);
        int locked = mlock(span.at, PAGE);
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        uint64_t *words = (uint64_t *)span.at;
        _exit(locked ? 2 : words[9] == 0x1234567 && words[10] == 0x7654321 ? 0 : 1);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
        result(" not stopped %x", status);
        return;
    }
    uint64_t old = 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", child);
    int memory = how & 1 ? open(path, O_RDWR) : -1;
    for (int i = 9; i < 11; i++) {
        uint64_t word = i == 9 ? 0x1234567 : 0x7654321;
        uint64_t *at = (uint64_t *)span.at + i;
        errno = 0;
        if (how & 1) {
            result_of(pread(memory, &old, 8, (off_t)at));
            result(" %lx", old);
            result_of(pwrite(memory, &word, 8, (off_t)at));
        } else {
            old = ptrace(PTRACE_PEEKDATA, child, at, 0);
            result(" %lx %s", errno ? 0 : old, errno ? strerrorname_np(errno) : "");
            result_of(ptrace(PTRACE_POKEDATA, child, at, word));
        }
    }
    if (memory >= 0)
        close(memory);
    ptrace(PTRACE_DETACH, child, 0, 0);
    waitpid(child, &status, 0);
    result(" %x", status);
}

struct ring {
    int fd;
    struct io_uring_params parameters;
    char *queues;
    struct io_uring_sqe *entries;
};

static int ring_open(struct ring *ring)
{
    memset(ring, 0, sizeof *ring);
    ring->fd = syscall(SYS_io_uring_setup, 4, &ring->parameters);
    if (ring->fd < 0)
        return 0;
    ring->queues = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->entries = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    return ring->queues != MAP_FAILED && ring->entries != MAP_FAILED;
}

/* Submits one request and waits for its result. */
static int ring_do(struct ring *ring, const struct io_uring_sqe *entry)
{
    char *q = ring->queues;
    struct io_uring_params *p = &ring->parameters;
    unsigned *tail = (unsigned *)(q + p->sq_off.tail), mask = *(unsigned *)(q + p->sq_off.ring_mask);
    ring->entries[*tail & mask] = *entry;
    ((unsigned *)(q + p->sq_off.array))[*tail & mask] = *tail & mask;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        return -errno;
    unsigned *head = (unsigned *)(q + p->cq_off.head), seen = *head;
    struct io_uring_cqe *done = (struct io_uring_cqe *)(q + p->cq_off.cqes) + (seen & *(unsigned *)(q + p->cq_off.ring_mask));
    int answer = done->res;
    __atomic_store_n(head, seen + 1, __ATOMIC_RELEASE);
    return answer;
}

/* Registers pages as a ring's buffer, and has it written to a file (flag 1: read), past
 * the page cache with flag 2; with flag 4 other memory is pressed out meanwhile. */
OPERATION ring_io(long number, long page, long pages, long file_page, long flags)
{
    FIND_SPAN(span, number, page, FEW(pages));
    struct ring ring;
    if (!ring_open(&ring)) {
        result_of(-1);
        return;
    }
    struct iovec vector = {span.at, span.pages * PAGE};
    int registered = syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &vector, 1);
    result_of(registered);
    int fd = flags & 2 ? direct_of(files[1]) : files[1];
    if (flags & 4)
        churn(8);
    off_t offset = (unsigned long)file_page % (FILE_PAGES - 8) * PAGE;
    struct io_uring_sqe entry = {
        .opcode = registered < 0 ? flags & 1 ? IORING_OP_READ : IORING_OP_WRITE
                                 : flags & 1 ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED,
        .fd = fd, .off = offset, .addr = (uint64_t)span.at, .len = span.pages * PAGE,
    };
    int answer = ring_do(&ring, &entry);
    result(" %s", answer < 0 ? strerrorname_np(-answer) : "");
    result(" %d", answer < 0 ? 0 : answer);
    sum_span(&span);
    if (flags & 4)
        churn(8);
    if (fd != files[1])
        close(fd);
    close(ring.fd);
    munmap(ring.queues, PAGE);
    munmap(ring.entries, PAGE);
    sum_span(&span);
}

/* Waits for a word to change that holds another value already. */
OPERATION futex_word(long number, long page)
{
    FIND_SPAN(span, number, page, 1);
    result_of(syscall(SYS_futex, span.at + 16, 0 /* FUTEX_WAIT */, 0x5a5a5a5a, &(struct timespec){0, 1000000}, NULL, 0));
}

/* A segment of System V shared memory, in region 0 in place of what is there (flag 1), or
 * where the kernel likes. */
OPERATION map_segment(long page, long pages, long seed, long flags)
{
    FIND_SPAN(span, 0, page, pages);
    int segment = shmget(IPC_PRIVATE, span.pages * PAGE, IPC_CREAT | 0600);
    if (segment < 0) {
        result_of(-1);
        return;
    }
    char *at = shmat(segment, flags & 1 ? span.at : NULL, flags & 1 ? SHM_REMAP : 0);
    shmctl(segment, IPC_RMID, NULL);
    if (at == (char *)-1) {
        result_of(-1);
        return;
    }
    for (long i = 0; i < span.pages; i += 3)
        fault_of(fill, &(struct access){.at = at + i * PAGE, .seed = seed, .page = i});
    if (flags & 1) {
        result_of(at != span.at);
        mark_mapped(&span, 1);
    } else {
        struct span all = span;
        all.at = at;
        sum_span(&all);
    }
    if (!(flags & 1) || flags & 2) {
        result_of(shmdt(at));
        if (flags & 1)
            mark_unmapped(&span);
    }
}

/* A thread that answers faults by a userfaultfd of the program's own. */
struct answerer { int fd; char *base; long pages; uint64_t seed; };

static void *answer_faults(void *argument)
{
    struct answerer *own = argument;
    static __thread uint64_t contents[PAGE / 8] __attribute__((aligned(PAGE)));
    for (long n = 0; n < own->pages; n++) {
        struct uffd_msg message;
        if (read(own->fd, &message, sizeof message) != sizeof message || message.event != UFFD_EVENT_PAGEFAULT)
            break;
        char *at = (char *)(message.arg.pagefault.address & ~(PAGE - 1ul));
        fill_page(contents, own->seed, (at - own->base) / PAGE);
        struct uffdio_copy copy = {.dst = (uintptr_t)at, .src = (uintptr_t)contents, .len = PAGE};
        if (ioctl(own->fd, UFFDIO_COPY, &copy) < 0)
            break;
    }
    return NULL;
}

/* Memory whose faults the program answers itself. It is shared: private memory has the
 * pager's userfaultfd. */
OPERATION own_faults(long pages, long seed)
{
    struct answerer answerer = {.pages = FEW(pages), .seed = seed};
    size_t length = answerer.pages * PAGE;
    answerer.fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (answerer.fd < 0) {
        result_of(-1);
        return;
    }
    result_of(ioctl(answerer.fd, UFFDIO_API, &(struct uffdio_api){.api = UFFD_API}));
    answerer.base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {.range = {(uintptr_t)answerer.base, length}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    result_of(ioctl(answerer.fd, UFFDIO_REGISTER, &all));
    pthread_t made;
    if (pthread_create(&made, NULL, answer_faults, &answerer))
        _exit(6);
    struct span span = {.at = answerer.base, .pages = answerer.pages};
    sum_span(&span);
    pthread_join(made, NULL);
    close(answerer.fd);
    munmap(answerer.base, length);
}
