/* Thread after thread runs on one stack of the program's own and ends by the system call alone, more of them than a
 * page counts nails; each is joined, beside threads that touch more memory than the frames hold. */
#include "hazard.h"

static void *ends_by_the_system_call(void *began)
{
    *(int *)began = 1;
    syscall(SYS_exit, 0);
    return NULL;
}

int main(void)
{
    struct churn churn[1];
    churn_start(churn, 1);
    pthread_t thread;
    pthread_attr_t attributes;
    char *stack = map_private(MB);
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, MB) == 0);
    for (int n = 0; n < 600; n++) {
        int began = 0;
        CHECK(pthread_create(&thread, &attributes, ends_by_the_system_call, &began) == 0);
        CHECK(pthread_join(thread, NULL) == 0 && began);
    }
    churn_stop(churn, 1);
    return 0;
}
