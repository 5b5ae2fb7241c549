/* The kernel reads and writes the program's memory too: every buffer, vector and
 * structure handed to it may be paged out. None may get EFAULT or wrong bytes. */
#include "hazard.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/un.h>

enum { VECTORS = 64, CHUNK = 3 * 4096 + 100 };

static void *pump(void *arg)
{
    /* Reads what main writes in odd pieces into memory that is mostly out. */
    int fd = *(int *)arg;
    size_t n = hazard_bytes() / 2, got = 0;
    char *p = map_private(n);
    fill(p, n, 999);
    while (got < n) {
        size_t want = 1 + mix(got) % 200000;
        ssize_t r = read(fd, p + got, want < n - got ? want : n - got);
        CHECK(r > 0);
        got += r;
    }
    CHECK(holds(p, n, 42));
    return NULL;
}

int main(void)
{
    struct churn churn[1];
    churn_start(churn, 1);

    /* A pipe between two threads, both buffers paging. */
    int fd[2];
    CHECK(pipe(fd) == 0);
    pthread_t t;
    size_t n = hazard_bytes() / 2, put = 0;
    char *p = map_private(n);
    fill(p, n, 42);
    CHECK(pthread_create(&t, NULL, pump, &fd[0]) == 0);
    while (put < n) {
        size_t want = 1 + mix(put + 1) % 200000;
        ssize_t w = write(fd[1], p + put, want < n - put ? want : n - put);
        CHECK(w > 0);
        put += w;
    }
    CHECK(pthread_join(t, NULL) == 0);
    close(fd[0]), close(fd[1]);

    /* Vectors: the array, and what it points to, are out. */
    FILE *file = tmpfile();
    CHECK(file);
    struct iovec *out = malloc(VECTORS * sizeof *out), *in = malloc(VECTORS * sizeof *in);
    for (int i = 0; i < VECTORS; i++) {
        out[i] = (struct iovec){p + (size_t)i * (n / VECTORS), CHUNK};
        in[i] = (struct iovec){malloc(CHUNK), CHUNK};
        malloc(100000);
    }
    for (int round = 0; round < 4; round++) {
        push_out();
        CHECK(pwritev(fileno(file), out, VECTORS, 0) == VECTORS * CHUNK);
        push_out();
        CHECK(preadv(fileno(file), in, VECTORS, 0) == VECTORS * CHUNK);
        for (int i = 0; i < VECTORS; i++)
            CHECK(memcmp(in[i].iov_base, out[i].iov_base, CHUNK) == 0);
    }

    /* Messages: header, control data, addresses and payload are out. */
    int sock[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, sock) == 0);
    for (int round = 0; round < 4; round++) {
        struct msghdr *send = calloc(1, sizeof *send), *receive = calloc(1, sizeof *receive);
        union { struct cmsghdr align; char room[CMSG_SPACE(sizeof(int))]; } *control = calloc(2, sizeof *control);
        send->msg_iov = out, send->msg_iovlen = 4, send->msg_control = control, send->msg_controllen = sizeof *control;
        struct cmsghdr *c = CMSG_FIRSTHDR(send);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
        int own = fileno(file);
        memcpy(CMSG_DATA(c), &own, sizeof own);
        receive->msg_iov = in, receive->msg_iovlen = 4, receive->msg_control = control + 1, receive->msg_controllen = sizeof *control;
        for (int i = 0; i < 4; i++)
            memset(in[i].iov_base, 0, CHUNK);
        push_out();
        CHECK(sendmsg(sock[0], send, 0) == 4 * CHUNK);
        push_out();
        CHECK(recvmsg(sock[1], receive, 0) == 4 * CHUNK);
        for (int i = 0; i < 4; i++)
            CHECK(memcmp(in[i].iov_base, out[i].iov_base, CHUNK) == 0);
        int passed;
        memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(receive)), sizeof passed);
        struct stat a, b;
        CHECK(fstat(passed, &a) == 0 && fstat(own, &b) == 0 && a.st_ino == b.st_ino);
        close(passed);
    }

    /* Small structures in and out, each on a page of its own that is out. */
    char *s = map_private(64 * PAGE);
    fill(s, 64 * PAGE, 7);
    strcpy(s, "/proc/self/exe");
    push_out();
    CHECK(stat(s, (struct stat *)(s + PAGE)) == 0 && S_ISREG(((struct stat *)(s + PAGE))->st_mode));
    CHECK(readlink(s, s + 2 * PAGE, PAGE) > 0);
    CHECK(getcwd(s + 3 * PAGE, PAGE) != NULL);
    CHECK(getrandom(s + 4 * PAGE - 8, 16, 0) == 16);
    CHECK(syscall(SYS_clock_gettime, CLOCK_REALTIME, s + 5 * PAGE) == 0);
    int epoll = epoll_create1(0);
    struct epoll_event *event = (struct epoll_event *)(s + 6 * PAGE);
    event->events = EPOLLIN, event->data.u64 = 0x1234567890;
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, sock[1], event) == 0);
    CHECK(write(sock[0], "x", 1) == 1);
    push_out();
    CHECK(epoll_wait(epoll, (struct epoll_event *)(s + 7 * PAGE), 10, 1000) == 1);
    CHECK(((struct epoll_event *)(s + 7 * PAGE))->data.u64 == 0x1234567890);
    struct pollfd *polled = (struct pollfd *)(s + 8 * PAGE);
    *polled = (struct pollfd){.fd = sock[1], .events = POLLIN};
    push_out();
    CHECK(poll(polled, 1, 1000) == 1 && polled->revents == POLLIN);
    struct sockaddr_un *address = (struct sockaddr_un *)(s + 9 * PAGE);
    socklen_t *length = (socklen_t *)(s + 10 * PAGE);
    *length = sizeof *address;
    push_out();
    CHECK(getsockname(sock[0], (struct sockaddr *)address, length) == 0);
    /* Another task's view: this process's own memory by process_vm_readv. */
    struct iovec *local = (struct iovec *)(s + 11 * PAGE), *remote = local + 1;
    *local = (struct iovec){s + 20 * PAGE, 20 * PAGE};
    *remote = (struct iovec){p, 20 * PAGE};
    push_out();
    ssize_t moved = process_vm_readv(getpid(), local, 1, remote, 1, 0);
    CHECK(moved == (ssize_t)(20 * PAGE) || (moved < 0 && errno == EPERM));
    if (moved > 0)
        CHECK(holds(s + 20 * PAGE, 20 * PAGE, 42));

    /* vmsplice keeps references to the pages themselves. */
    CHECK(pipe(fd) == 0);
    for (int round = 0; round < 8; round++) {
        struct iovec v = {p + (size_t)round * 16 * PAGE, 8 * PAGE};
        CHECK(vmsplice(fd[1], &v, 1, 0) == (ssize_t)(8 * PAGE));
        push_out();
        CHECK(read(fd[0], s + 20 * PAGE, 8 * PAGE) == (ssize_t)(8 * PAGE));
        CHECK(memcmp(s + 20 * PAGE, v.iov_base, 8 * PAGE) == 0);
    }
    CHECK(holds(p, n, 42));
    churn_stop(churn, 1);
    return 0;
}
