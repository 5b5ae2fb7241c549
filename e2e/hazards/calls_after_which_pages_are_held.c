/* Calls that stop at the filter, and their likes that do not, each with arguments that lead to
 * nothing: the answer is the kernel's. With the name of one, only that is called. */
#include "hazard.h"
#include <linux/videodev2.h>
#include <scsi/sg.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

#define NOWHERE "/nonexistent"
#define PLAIN O_RDONLY

static const char *only;

static int wanted(const char *name)
{
    return !only || !strcmp(only, name);
}

#define CALL(name, call) do { \
        if (wanted(name)) { \
            errno = 0; \
            long answer = (call); \
            printf("%s: %d %d\n", name, answer < 0, answer < 0 ? errno : 0); \
        } \
    } while (0)

int main(int argc, char **argv)
{
    char nothing[4096] = {0};
    only = argc > 1 ? argv[1] : NULL;
    CALL("open", syscall(SYS_open, NOWHERE, O_DIRECT));
    CALL("openat", syscall(SYS_openat, AT_FDCWD, NOWHERE, O_DIRECT));
    CALL("openat2", syscall(SYS_openat2, AT_FDCWD, NOWHERE, NULL, 0));
    CALL("open_by_handle_at", syscall(SYS_open_by_handle_at, -1, nothing, O_DIRECT));
    CALL("fcntl", fcntl(-1, F_SETFL, O_DIRECT));
    CALL("pidfd_getfd", syscall(SYS_pidfd_getfd, -1, -1, 0));
    CALL("io_uring_setup", syscall(SYS_io_uring_setup, 0, NULL));
    CALL("io_setup", syscall(SYS_io_setup, 0, NULL));
    CALL("process_vm_writev", process_vm_writev(getpid(), NULL, 0, NULL, 0, 0));
    CALL("SG_IO", ioctl(-1, SG_IO, nothing));
    CALL("VIDIOC_REQBUFS", ioctl(-1, VIDIOC_REQBUFS, nothing));
    CALL("RDMA_VERBS_IOCTL", ioctl(-1, 0xc0181b01ul, nothing));
    CALL("AF_ALG", socket(AF_ALG, SOCK_SEQPACKET, -1));
    CALL("AF_XDP", socket(AF_XDP, SOCK_RAW, -1));
    CALL("mount", mount("none", NOWHERE, "fuse.sshfs", 0, NULL));
    CALL("fsopen", syscall(SYS_fsopen, "fuse", -1));
    CALL("setns", setns(-1, CLONE_NEWNS));
    CALL("x32", syscall(0x40000000 | SYS_getppid));
    if (wanted("others")) {
        only = NULL;
        CALL("plain open", syscall(SYS_open, NOWHERE, PLAIN));
        CALL("plain openat", syscall(SYS_openat, AT_FDCWD, NOWHERE, PLAIN));
        CALL("plain open_by_handle_at", syscall(SYS_open_by_handle_at, -1, nothing, PLAIN));
        CALL("plain fcntl", fcntl(-1, F_SETFL, O_NONBLOCK));
        CALL("F_GETFL", fcntl(-1, F_GETFL, O_DIRECT));
        CALL("process_vm_readv", process_vm_readv(getpid(), NULL, 0, NULL, 0, 0));
        CALL("TIOCGWINSZ", ioctl(-1, TIOCGWINSZ, nothing));
        CALL("AF_UNIX", socket(AF_UNIX, SOCK_STREAM, -1));
        CALL("mount tmpfs", mount("none", NOWHERE, "tmpfs", 0, NULL));
        CALL("bind", mount("none", NOWHERE, NULL, MS_BIND, NULL));
        CALL("fsopen tmpfs", syscall(SYS_fsopen, "tmpfs", -1));
        CALL("setns of a network", setns(-1, CLONE_NEWNET));
        CALL("no call", syscall(-1));
    }
    return 0;
}
