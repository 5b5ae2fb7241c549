/* Threads that are blocked in calls which are cancellation points are cancelled there, and unwound through the functions
 * that stand in front of the C library's. */
#include "hazard.h"
#include <poll.h>

static pid_t child;
static int ends[2];
static _Atomic int unwound;

static void note(void *way)
{
    (void)way;
    unwound++;
}

static void *blocked(void *way)
{
    int status;
    siginfo_t info;
    char bytes[16];
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    pthread_cleanup_push(note, way);
    switch ((intptr_t)way) {
    case 0: wait(&status); break;
    case 1: waitpid(child, NULL, 0); break;
    case 2: wait3(&status, 0, NULL); break;
    case 3: wait4(child, &status, 0, NULL); break;
    case 4: waitid(P_PID, child, &info, WEXITED); break;
    case 5: if (system("exec sleep 100") >= 0) break; break;
    case 6: recvmsg(ends[0], &message, 0); break;
    case 7: if (read(ends[0], bytes, 1) >= 0) break; break;
    case 8: poll(NULL, 0, 100000); break;
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void)
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    child = checked_fork();
    if (child == 0) {
        pause();
        _exit(1);
    }
    for (intptr_t way = 0; way < 9; way++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, blocked, (void *)way) == 0);
        nap(30);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        CHECK(unwound == way + 1);
    }
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, NULL, 0) == child);
    return 0;
}
