/* An io_uring by raw system calls, without liburing. */
#ifndef RING_H
#define RING_H
#include "hazard.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

struct ring {
    int fd;
    unsigned *sq_head, *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

/* Returns 0 where this kernel or its policy has no io_uring. */
__attribute__((unused)) static int ring_open(struct ring *r, unsigned depth)
{
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    r->fd = syscall(SYS_io_uring_setup, depth, &p);
    if (r->fd < 0) {
        CHECK(errno == ENOSYS || errno == EPERM);
        return 0;
    }
    size_t sq = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    char *s = mmap(NULL, sq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);
    char *c = mmap(NULL, cq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_CQ_RING);
    r->sqes = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
    CHECK(s != MAP_FAILED && c != MAP_FAILED && r->sqes != MAP_FAILED);
    r->sq_head = (unsigned *)(s + p.sq_off.head), r->sq_tail = (unsigned *)(s + p.sq_off.tail);
    r->sq_mask = (unsigned *)(s + p.sq_off.ring_mask), r->sq_array = (unsigned *)(s + p.sq_off.array);
    r->cq_head = (unsigned *)(c + p.cq_off.head), r->cq_tail = (unsigned *)(c + p.cq_off.tail);
    r->cq_mask = (unsigned *)(c + p.cq_off.ring_mask), r->cqes = (struct io_uring_cqe *)(c + p.cq_off.cqes);
    return 1;
}

__attribute__((unused)) static void ring_put(struct ring *r, int op, int fd, void *at, unsigned bytes, off_t offset, int index, uint64_t tag)
{
    unsigned tail = *r->sq_tail, slot = tail & *r->sq_mask;
    struct io_uring_sqe *sqe = &r->sqes[slot];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = op, sqe->fd = fd, sqe->addr = (uintptr_t)at, sqe->len = bytes, sqe->off = offset;
    sqe->buf_index = index, sqe->user_data = tag;
    r->sq_array[slot] = slot;
    __atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

static void ring_enter(struct ring *r, unsigned submit, unsigned wait)
{
    long done;
    do
        done = syscall(SYS_io_uring_enter, r->fd, submit, wait, wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
    while (done < 0 && errno == EINTR);
    CHECK(done == (long)submit);
}

__attribute__((unused)) static uint64_t ring_take(struct ring *r, int expected)
{
    unsigned head = *r->cq_head;
    while (head == __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE))
        ring_enter(r, 0, 1);
    struct io_uring_cqe cqe = r->cqes[head & *r->cq_mask];
    __atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
    if (cqe.res != expected)
        fprintf(stderr, "completion %lu: %d, not %d\n", (unsigned long)cqe.user_data, cqe.res, expected);
    CHECK(cqe.res == expected);
    return cqe.user_data;
}

/* A file for direct I/O in the working directory, already unlinked; -1 where the file
 * system has no O_DIRECT. */
__attribute__((unused)) static int direct_file(size_t bytes)
{
    char name[64];
    snprintf(name, sizeof name, "./direct-%d-%ld", (int)getpid(), random());
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_DIRECT, 0600);
    if (fd < 0) {
        CHECK(errno == EINVAL);
        return -1;
    }
    unlink(name);
    CHECK(ftruncate(fd, bytes) == 0);
    return fd;
}
#endif
