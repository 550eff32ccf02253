/* syscall(2): every call on sockets and descriptors by its number does what the function of that name does. */
#include "behaviour.h"
#include <linux/close_range.h>

static struct ends e;
static char b[8];
static struct iovec part = {b, 4};
static struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
static struct mmsghdr messages = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
static void sends(const char *what) { MUST(send(e.client, what, strlen(what), 0)), arrived(e.server, strlen(what)); }
static void got(void) {
    char c[8] = {0};
    TRY(recv(e.client, c, 4, MSG_WAITALL));
    say("%s", c);
}
static void connections(void) {
    int s = TRY(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)) , on = 1;
    struct sockaddr_in a = here(0);
    socklen_t len = sizeof a;
    TRY(syscall(SYS_bind, s, &a, sizeof a));
    TRY(syscall(SYS_listen, s, 4));
    TRY(syscall(SYS_getsockname, s, &a, &len));
    for (int way = 0; way < 2; way++) {
        e.client = socket(AF_INET, SOCK_STREAM, 0);
        TRY(syscall(SYS_connect, e.client, &a, sizeof a));
        e.server = way ? syscall(SYS_accept4, s, NULL, NULL, SOCK_CLOEXEC) : syscall(SYS_accept, s, NULL, NULL);
        say("accepted %d, %d", e.server > 0, fcntl(e.server, F_GETFD));
        if (way == 0) TRY(syscall(SYS_close, e.server));
        if (way == 0) close(e.client);
    }
    close(s);
    len = sizeof on;
    TRY(syscall(SYS_getpeername, e.server, &a, &(socklen_t){sizeof a}));
    TRY(syscall(SYS_setsockopt, e.server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    on = 0;
    TRY(syscall(SYS_getsockopt, e.server, SOL_SOCKET, SO_ACCEPTCONN, &on, &len));
}
static void reading(void) {
    sends("aaaabbbbccccddddeeee");
    TRY(syscall(SYS_read, e.server, b, 4));
    TRY(syscall(SYS_readv, e.server, &part, 1));
    TRY(syscall(SYS_recvfrom, e.server, b, 4, 0, NULL, NULL));
    TRY(syscall(SYS_recvmsg, e.server, &message, 0));
    TRY(syscall(SYS_recvmmsg, e.server, &messages, 1, 0, NULL));
    say("%.4s", b);
    sends("ffff");
    TRY(syscall(SYS_preadv2, e.server, &part, 1, -1L, -1L, 0));
    say("%.4s", b);
    TRY(syscall(SYS_preadv2, e.server, &part, 1, 0L, 0L, 0));
    TRY(syscall(SYS_preadv, e.server, &part, 1, 0L, 0L));
    TRY(syscall(SYS_pread64, e.server, b, 4, 0L));
}
static void writing(void) {
    memcpy(b, "wwww", 4);
    TRY(syscall(SYS_write, e.server, b, 4)), got();
    TRY(syscall(SYS_writev, e.server, &part, 1)), got();
    TRY(syscall(SYS_sendto, e.server, b, 4, 0, NULL, 0)), got();
    TRY(syscall(SYS_sendmsg, e.server, &message, 0)), got();
    TRY(syscall(SYS_sendmmsg, e.server, &messages, 1, 0)), got();
    TRY(syscall(SYS_pwritev2, e.server, &part, 1, -1L, -1L, 0)), got();
    TRY(syscall(SYS_pwritev2, e.server, &part, 1, 0L, 0L, 0));
    TRY(syscall(SYS_pwritev, e.server, &part, 1, 0L, 0L));
    TRY(syscall(SYS_pwrite64, e.server, b, 4, 0L));
    int file = MUST(open("file", O_RDWR | O_CREAT, 0600)), pipes[2];
    MUST(write(file, "file", 4));
    off_t from = 0;
    TRY(syscall(SYS_sendfile, e.server, file, &from, 4L)), got();
    MUST(pipe(pipes));
    MUST(write(pipes[1], "pipe", 4));
    TRY(syscall(SYS_splice, pipes[0], NULL, e.server, NULL, 4L, 0)), got();
    close(file), close(pipes[0]), close(pipes[1]);
}
static void only(fd_set *set, int fd) {
    FD_ZERO(set);
    FD_SET(fd, set);
}
static void waiting(void) {
    struct pollfd p = {e.server, POLLIN};
    struct timespec t = {0, 1000000}, left = t;
    struct timeval v = {0, 1000};
    sigset_t mask;
    sigemptyset(&mask);
    struct { const sigset_t *set; size_t len; } both = {&mask, 8};
    fd_set r;
    struct epoll_event w = {.events = EPOLLIN};
    int q = syscall(SYS_epoll_create, 1), q1 = syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
    TRY(syscall(SYS_epoll_ctl, q, EPOLL_CTL_ADD, e.server, &w));
    for (int ready = 0; ready < 2; ready++) {
        if (ready) sends("r");
        left = t;
        TRY(syscall(SYS_poll, &p, 1L, 1));
        TRY(syscall(SYS_ppoll, &p, 1L, &left, &mask, 8L));
        only(&r, e.server);
        TRY(syscall(SYS_select, e.server + 1, &r, NULL, NULL, &v));
        only(&r, e.server);
        left = t;
        TRY(syscall(SYS_pselect6, e.server + 1, &r, NULL, NULL, &left, &both));
        only(&r, e.server);
        left = t;
        TRY(syscall(SYS_pselect6, e.server + 1, &r, NULL, NULL, &left, NULL));
        say("set %d", FD_ISSET(e.server, &r));
        TRY(syscall(SYS_epoll_wait, q, &w, 1, 1));
        TRY(syscall(SYS_epoll_pwait, q, &w, 1, 1, &mask, 8L));
        left = t;
        TRY(syscall(SYS_epoll_pwait2, q, &w, 1, &left, &mask, 8L));
    }
    both.len = 4;
    TRY(syscall(SYS_pselect6, e.server + 1, &r, NULL, NULL, &t, &both));
    TRY(syscall(SYS_ppoll, &p, 1L, &t, &mask, 4L));
    close(q), close(q1);
}
static void descriptors(void) {
    int count = 0;
    TRY(syscall(SYS_ioctl, e.server, FIONREAD, &count));
    say("%d", count);
    int copy = syscall(SYS_dup, e.server);
    TRY(syscall(SYS_dup2, copy, 50));
    TRY(syscall(SYS_dup3, copy, 51, O_CLOEXEC));
    TRY(syscall(SYS_fcntl, copy, F_DUPFD, 52));
    TRY(syscall(SYS_close_range, copy, copy, 0));
    for (int fd = 50; fd < 53; fd++) sends("1234"), TRY(read(fd, b, 4)), close(fd);
    TRY(syscall(SYS_shutdown, e.server, SHUT_WR));
    TRY(read(e.client, b, 1));
}
int main(void) {
    connections(), reading(), writing(), waiting(), descriptors();
    /* A connection goes with a program that is executed, by either number. */
    for (int way = 0; way < 2; way++) {
        int s = listener();
        e = ends_at(s);
        if (fork() == 0) {
            char *cat[] = {"cat", NULL}, *none[] = {NULL};
            dup2(e.server, 0), dup2(e.server, 1);
            if (way) syscall(SYS_execveat, AT_FDCWD, "/bin/cat", cat, none, 0);
            else syscall(SYS_execve, "/bin/cat", cat, none);
            _exit(9);
        }
        close(e.server), close(s);
        MUST(send(e.client, "echo", 4, 0));
        got();
        shutdown(e.client, SHUT_WR);
        TRY(read(e.client, b, 1));
        wait(NULL);
        close(e.client);
    }
    /* So does one with a child, whatever its maker is called. */
    for (int way = 0; way < 3; way++) {
        uint64_t arguments[8] = {[4] = SIGCHLD};
        e = ends();
        pid_t pid = way == 0 ? syscall(SYS_fork) : way == 1 ? syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L)
                                                            : syscall(SYS_clone3, arguments, sizeof arguments);
        if (pid == 0) _exit(send(e.server, "born", 4, 0) != 4);
        close(e.server);
        got();
        wait(NULL);
        TRY(read(e.client, b, 1));
        close(e.client);
    }
    TRY(syscall(SYS_chroot, "/nowhere"));
}
