/* Mutexes, conditions, barriers, semaphores and read-write locks in memory that pages:
 * the futexes under them are looked up by the kernel. */
#include "hazard.h"
#include <semaphore.h>

enum { THREADS = 6, STATIONS = 200, LAPS = 40 };
struct station {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    pthread_rwlock_t rw;
    sem_t semaphore;
    unsigned long turn, total;
    char room[3 * 4096];
};
static struct station *station;
static pthread_barrier_t *barrier;

static void *runner(void *arg)
{
    unsigned long id = (uintptr_t)arg;
    for (int lap = 0; lap < LAPS; lap++) {
        pthread_barrier_wait(barrier);
        for (int k = 0; k < STATIONS; k += 10) {
            struct station *s = &station[(k + lap * 7) % STATIONS];
            /* All threads pass in turn: a lost wake-up hangs here. */
            CHECK(pthread_mutex_lock(&s->mutex) == 0);
            while (s->turn % THREADS != id)
                CHECK(pthread_cond_wait(&s->condition, &s->mutex) == 0);
            s->turn++;
            CHECK(pthread_cond_broadcast(&s->condition) == 0);
            CHECK(pthread_mutex_unlock(&s->mutex) == 0);
            CHECK(sem_wait(&s->semaphore) == 0);
            s->total++;
            CHECK(sem_post(&s->semaphore) == 0);
            CHECK(pthread_rwlock_rdlock(&s->rw) == 0);
            CHECK(s->total <= (unsigned long)THREADS * LAPS);
            CHECK(pthread_rwlock_unlock(&s->rw) == 0);
        }
    }
    return NULL;
}

int main(void)
{
    station = map_private(STATIONS * sizeof *station);
    barrier = malloc(sizeof *barrier);
    CHECK(pthread_barrier_init(barrier, NULL, THREADS) == 0);
    for (int i = 0; i < STATIONS; i++) {
        pthread_mutex_init(&station[i].mutex, NULL);
        pthread_cond_init(&station[i].condition, NULL);
        pthread_rwlock_init(&station[i].rw, NULL);
        sem_init(&station[i].semaphore, 0, 1);
    }
    struct churn churn[2];
    churn_start(churn, 2);
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, runner, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    unsigned long total = 0;
    for (int i = 0; i < STATIONS; i++)
        total += station[i].total;
    CHECK(total == (unsigned long)THREADS * LAPS * STATIONS / 10);
    churn_stop(churn, 2);
    return 0;
}
