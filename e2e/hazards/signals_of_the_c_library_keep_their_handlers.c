/* A program with threads resets, or ignores, every signal. The C library refuses the two by which it cancels threads
 * and has all of them change their user, and both still work. */
#include "hazard.h"

static void *waits(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static void set_all(sighandler_t handler)
{
    struct sigaction action = {0};
    action.sa_handler = handler;
    for (int number = 1; number < NSIG; number++) {
        errno = 0;
        int answer = sigaction(number, &action, NULL);
        if (number == 32 || number == 33)
            CHECK(answer == -1 && errno == EINVAL);
    }
    CHECK(signal(32, handler) == SIG_ERR && errno == EINVAL);
    CHECK(sigaction(33, NULL, &action) == -1 && errno == EINVAL);
}

static pthread_t start(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    return thread;
}

static void cancel(pthread_t thread)
{
    void *result;
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

int main(void)
{
    sighandler_t const handlers[] = {SIG_DFL, SIG_IGN};
    for (int n = 0; n < 2; n++) {
        pid_t child = checked_fork();
        if (child == 0) {
            /* The C library sets its handlers when they are first needed. */
            cancel(start());
            pthread_t first = start(), second = start();
            CHECK(setuid(getuid()) == 0);
            set_all(handlers[n]);
            signal(SIGALRM, SIG_DFL);
            alarm(20);
            CHECK(setuid(getuid()) == 0);
            cancel(first);
            cancel(second);
            _exit(0);
        }
        reap(child);
    }
    puts("all threads answered");
    return 0;
}
