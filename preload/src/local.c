/* The C library's functions that this library itself calls, defined again: bound here when
 * the library is linked, and not exported.
 *
 * A program may define functions of these names (a sanitizer's runtime does), and the loader
 * then binds every library's calls to the program's. They expect threads that the program
 * made, after its runtime has started; the constructor runs before that, and the program
 * did not make the pager's threads.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <time.h>

typedef uint64_t __attribute__((may_alias, aligned(1))) word;
typedef unsigned char byte;

/* Bytes from which the processor's own string instructions are the faster. */
#define STRING 256

void *memcpy(void *restrict to, const void *restrict from, size_t n) {
    byte *d = to;
    const byte *s = from;
    if (n >= STRING) {
        __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n) : : "memory");
        return to;
    }
    for (; n >= 8; n -= 8, d += 8, s += 8) *(word *)d = *(const word *)s;
    while (n--) *d++ = *s++;
    return to;
}

void *memmove(void *to, const void *from, size_t n) {
    byte *d = to;
    const byte *s = from;
    if ((uintptr_t)d - (uintptr_t)s >= n) return memcpy(to, from, n);
    while (n & 7) n--, d[n] = s[n];
    while (n) n -= 8, *(word *)(d + n) = *(const word *)(s + n);
    return to;
}

void *memset(void *to, int value, size_t n) {
    byte *d = to;
    if (n >= STRING) {
        __asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(value) : "memory");
        return to;
    }
    word pattern = (byte)value * 0x0101010101010101u;
    for (; n >= 8; n -= 8, d += 8) *(word *)d = pattern;
    while (n--) *d++ = (byte)value;
    return to;
}

int memcmp(const void *one, const void *other, size_t n) {
    const byte *a = one, *b = other;
    for (; n >= 8 && *(const word *)a == *(const word *)b; n -= 8) a += 8, b += 8;
    for (; n; n--, a++, b++)
        if (*a != *b) return *a - *b;
    return 0;
}

int bcmp(const void *one, const void *other, size_t n) { return memcmp(one, other, n); }

size_t strlen(const char *text) {
    const char *end = text;
    while (*end) end++;
    return (size_t)(end - text);
}

static long call(long number, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long answer;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    if (answer < 0 && answer >= -4095) {
        errno = (int)-answer;
        return -1;
    }
    return answer;
}

ssize_t read(int fd, void *to, size_t n) { return call(SYS_read, fd, (long)to, (long)n, 0, 0); }

ssize_t write(int fd, const void *from, size_t n) {
    return call(SYS_write, fd, (long)from, (long)n, 0, 0);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return call(SYS_writev, fd, (long)parts, count, 0, 0);
}

off_t lseek64(int fd, off_t offset, int whence) {
    return call(SYS_lseek, fd, offset, whence, 0, 0);
}

int open64(const char *path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    int mode = va_arg(ap, int);
    va_end(ap);
    return (int)call(SYS_open, (long)path, flags, mode, 0, 0);
}

int fstat64(int fd, struct stat64 *to) { return (int)call(SYS_fstat, fd, (long)to, 0, 0, 0); }

int stat64(const char *path, struct stat64 *to) {
    return (int)call(SYS_stat, (long)path, (long)to, 0, 0, 0);
}

int statx(int fd, const char *path, int flags, unsigned mask, struct statx *to) {
    return (int)call(SYS_statx, fd, (long)path, flags, mask, (long)to);
}

ssize_t readlink(const char *path, char *to, size_t n) {
    return call(SYS_readlink, (long)path, (long)to, (long)n, 0, 0);
}

int clock_gettime(clockid_t clock, struct timespec *to) {
    return (int)call(SYS_clock_gettime, clock, (long)to, 0, 0, 0);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *span,
                    struct timespec *left) {
    int error = errno;
    int answer = call(SYS_clock_nanosleep, clock, flags, (long)span, (long)left, 0) ? errno : 0;
    errno = error;
    return answer;
}

int getpid(void) { return (int)call(SYS_getpid, 0, 0, 0, 0, 0); }
int gettid(void) { return (int)call(SYS_gettid, 0, 0, 0, 0, 0); }
int kill(int pid, int signal) { return (int)call(SYS_kill, pid, signal, 0, 0, 0); }

int fcntl(int fd, int command, ...) {
    va_list ap;
    va_start(ap, command);
    long argument = va_arg(ap, long);
    va_end(ap);
    return (int)call(SYS_fcntl, fd, command, argument, 0, 0);
}

/* The allocator's locks: plain ones, in the first word. 0 is free, 1 held, 2 held and waited
 * for. */
static int *word_of(pthread_mutex_t *lock) { return (int *)lock; }

int pthread_mutex_trylock(pthread_mutex_t *lock) {
    int free = 0;
    return __atomic_compare_exchange_n(word_of(lock), &free, 1, 0, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED)
               ? 0
               : EBUSY;
}

int pthread_mutex_lock(pthread_mutex_t *lock) {
    if (pthread_mutex_trylock(lock) == 0) return 0;
    int error = errno;
    while (__atomic_exchange_n(word_of(lock), 2, __ATOMIC_ACQUIRE) != 0)
        call(SYS_futex, (long)word_of(lock), FUTEX_WAIT_PRIVATE, 2, 0, 0);
    errno = error;
    return 0;
}

int pthread_mutex_unlock(pthread_mutex_t *lock) {
    if (__atomic_exchange_n(word_of(lock), 0, __ATOMIC_RELEASE) == 2)
        call(SYS_futex, (long)word_of(lock), FUTEX_WAKE_PRIVATE, 1, 0, 0);
    return 0;
}

int poll(struct pollfd *fds, nfds_t count, int timeout) {
    return (int)call(SYS_poll, (long)fds, (long)count, timeout, 0, 0);
}

int sysinfo(struct sysinfo *to) { return (int)call(SYS_sysinfo, (long)to, 0, 0, 0, 0); }

int getrusage(int of, struct rusage *to) {
    return (int)call(SYS_getrusage, of, (long)to, 0, 0, 0);
}

ssize_t getrandom(void *to, size_t n, unsigned flags) {
    return call(SYS_getrandom, (long)to, (long)n, flags, 0, 0);
}

int sched_getscheduler(pid_t pid) {
    return (int)call(SYS_sched_getscheduler, pid, 0, 0, 0, 0);
}

/* The kernel fills in what it has, and returns its size. */
int sched_getaffinity(pid_t pid, size_t n, cpu_set_t *to) {
    long filled = call(SYS_sched_getaffinity, pid, (long)n, (long)to, 0, 0);
    if (filled < 0) return -1;
    memset((byte *)to + filled, 0, n - (size_t)filled);
    return 0;
}

/* The kernel knows 64 signals; the C library's sets have room for more. */
int sigemptyset(sigset_t *set) {
    memset(set, 0, sizeof *set);
    return 0;
}

static int is_signal(int number) {
    if (number > 0 && number <= 64) return 1;
    errno = EINVAL;
    return 0;
}

int sigaddset(sigset_t *set, int number) {
    if (!is_signal(number)) return -1;
    set->__val[0] |= 1ul << (number - 1);
    return 0;
}

int sigismember(const sigset_t *set, int number) {
    return is_signal(number) ? (int)(set->__val[0] >> (number - 1) & 1) : -1;
}

/* The allocator's messages. */
int fputs(const char *text, FILE *stream) {
    (void)stream;
    return (int)write(2, text, strlen(text));
}

/* The text of an error number. The C library's function translates the text, and allocates it from
 * the program's paged heap: a thread of the pager would wait for a page that no other thread can
 * bring in. */
int __xpg_strerror_r(int error, char *to, size_t n) {
    const char *text = strerrordesc_np(error);
    if (!text) text = "unknown error";
    size_t length = strlen(text);
    if (n == 0) return ERANGE;
    if (length >= n) length = n - 1;
    memcpy(to, text, length);
    to[length] = 0;
    return 0;
}

/* True if the calling thread is the program's, and the program has started. */
extern int selfpage_in_program(void);

/* The C library keeps such a destructor in memory of the program's allocator. The pager's threads
 * never end; what the constructor registers is lost with its thread's end. */
static int (*next_thread_atexit)(void (*)(void *), void *, void *);

void selfpage_find_next(void) {
    next_thread_atexit = dlsym(RTLD_NEXT, "__cxa_thread_atexit_impl");
}

int __cxa_thread_atexit_impl(void (*destroy)(void *), void *object, void *library) {
    if (!selfpage_in_program()) return 0;
    if (!next_thread_atexit) selfpage_find_next();
    return next_thread_atexit ? next_thread_atexit(destroy, object, library) : 0;
}

/* Where a thread has this library's thread-local storage: always in the block that it started
 * with, since the library is loaded with the program. The vector of the libraries' parts is the
 * second word of the thread's control block, 16 bytes each. */
__asm__(".globl __tls_get_addr\n"
        ".hidden __tls_get_addr\n"
        ".type __tls_get_addr, @function\n"
        "__tls_get_addr:\n"
        "  mov %fs:8, %rax\n"
        "  mov (%rdi), %rcx\n"
        "  shl $4, %rcx\n"
        "  mov (%rax, %rcx), %rax\n"
        "  add 8(%rdi), %rax\n"
        "  ret\n"
        ".size __tls_get_addr, .-__tls_get_addr\n");
