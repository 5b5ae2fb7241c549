/* What a generational collector does: protect a heap, let SIGSEGV mark the page dirty and
 * give the right back, retry. From several threads, over memory that pages, and with the
 * handler on an alternate stack that pages as well. */
#include "hazard.h"

static char *heap;
static size_t heap_bytes;
static _Atomic unsigned char *dirty;
static atomic_ulong barriers;

static void barrier(int sig, siginfo_t *info, void *context)
{
    (void)context;
    int saved = errno;
    char *at = info->si_addr;
    CHECK(sig == SIGSEGV);
    CHECK(at >= heap && at < heap + heap_bytes);
    CHECK(info->si_code == SEGV_ACCERR);
    size_t page = (at - heap) / PAGE;
    dirty[page] = 1;
    barriers++;
    CHECK(mprotect(heap + page * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    errno = saved;
}

static void *mutator(void *arg)
{
    uint64_t id = (uintptr_t)arg;
    stack_t stack = {.ss_sp = malloc(64 * 1024), .ss_size = 64 * 1024};
    CHECK(sigaltstack(&stack, NULL) == 0);
    for (size_t k = 0; k < 1500; k++) {
        size_t page = mix(id * 1000003 + k) % (heap_bytes / PAGE);
        ((volatile uint64_t *)(heap + page * PAGE))[1 + id] = k + 1;
    }
    return NULL;
}

int main(void)
{
    heap_bytes = hazard_bytes() / 2;
    heap = map_private(heap_bytes);
    dirty = calloc(heap_bytes / PAGE, 1);
    struct sigaction action = {.sa_sigaction = barrier, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    struct sigaction mine;
    CHECK(sigaction(SIGSEGV, NULL, &mine) == 0 && mine.sa_sigaction == barrier);
    struct churn churn[1];
    churn_start(churn, 1);
    for (size_t at = 0; at < heap_bytes; at += PAGE)
        *(volatile uint64_t *)(heap + at) = mix(at);
    for (int cycle = 0; cycle < 3; cycle++) {
        memset((void *)dirty, 0, heap_bytes / PAGE);
        CHECK(mprotect(heap, heap_bytes, PROT_READ) == 0);
        pthread_t t[3];
        for (uintptr_t i = 0; i < 3; i++)
            CHECK(pthread_create(&t[i], NULL, mutator, (void *)i) == 0);
        for (int i = 0; i < 3; i++)
            CHECK(pthread_join(t[i], NULL) == 0);
        for (size_t at = 0; at < heap_bytes; at += PAGE) {
            volatile uint64_t *w = (volatile uint64_t *)(heap + at);
            CHECK(w[0] == mix(at));
            if (cycle == 0)
                CHECK(dirty[at / PAGE] == (w[1] || w[2] || w[3]));
        }
    }
    CHECK(barriers > 1000);
    CHECK(mprotect(heap, heap_bytes, PROT_READ | PROT_WRITE) == 0);
    churn_stop(churn, 1);
    return 0;
}
