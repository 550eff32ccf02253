/* EFAULT for every pointer that cannot be the program's, of every call, on accelerated and on shared sockets. */
#include "shared.h"

/* Two addresses that no program has. */
static void *const bad[] = {(void *)1, (void *)-8L};

static void received(int fd, int peer, void *at) {
    char b[4];
    socklen_t len = sizeof(struct sockaddr_in);
    struct sockaddr_in a;
    send(peer, "abcdefgh", 8, 0);
    arrived(fd, 8);
    TRY(recv(fd, at, 1, 0));
    TRY(recvfrom(fd, b, 1, 0, (struct sockaddr *)&a, at));
    TRY(recvmsg(fd, at, 0));
    TRY(recvmmsg(fd, at, 1, 0, NULL));
    TRY(readv(fd, at, 1));
    struct iovec part = {at, 1};
    struct msghdr m = {.msg_iov = at, .msg_iovlen = 1};
    TRY(readv(fd, &part, 1));
    TRY(recvmsg(fd, &m, 0));
    TRY(sendmsg(fd, at, 0));
    TRY(sendmsg(fd, &m, 0));
    TRY(sendmmsg(fd, at, 1, 0));
    TRY(writev(fd, at, 1));
    TRY(send(fd, at, 1, 0));
    TRY(getsockname(fd, at, &len));
    TRY(getsockname(fd, (struct sockaddr *)&a, at));
    TRY(getpeername(fd, at, &len));
    TRY(getpeername(fd, (struct sockaddr *)&a, at));
    int n;
    TRY(getsockopt(fd, SOL_SOCKET, SO_ERROR, at, &len));
    TRY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &n, at));
    TRY(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, at, &len));
    TRY(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &n, at));
    TRY(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, at, 4));
    TRY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, at, 4));
    TRY(ioctl(fd, FIONREAD, at));
    TRY(ioctl(fd, FIONBIO, at));
    drain(fd, MUST(ioctl(fd, FIONREAD, &n)) + n);
}

static void waited(int fd, void *at) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    struct timespec now = {0, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    TRY(poll(at, 1, 0));
    /* The C library itself reads these times: by their numbers. */
    TRY(syscall(SYS_ppoll, &p, 1, at, NULL, 8));
    TRY(ppoll(at, 1, &now, NULL));
    TRY(select(fd + 1, at, NULL, NULL, NULL));
    TRY(syscall(SYS_select, fd + 1, NULL, &set, NULL, at));
    FD_SET(fd, &set);
    TRY(syscall(SYS_pselect6, fd + 1, NULL, &set, NULL, at, NULL));
    TRY(syscall(SYS_pselect6, fd + 1, NULL, &set, NULL, &now, at));
    int q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLOUT}, got;
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, fd, at));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, fd, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, fd, at));
    TRY(epoll_pwait2(q, &got, 1, at, NULL));
    TRY(epoll_ctl(q, EPOLL_CTL_DEL, fd, at));
    close(q);
}

static void connection(struct ends e, const char *who) {
    for (int i = 0; i < 2; i++) {
        say("%s %d", who, i);
        received(e.server, e.client, bad[i]);
        waited(e.server, bad[i]);
    }
}

/* The connection is accepted and lost. */
static void accepted(void) {
    int s = listener();
    struct sockaddr_in a;
    socklen_t len = sizeof a, negative = -1;
    for (int i = 0; i < 2; i++) {
        int c = dial(s);
        TRY(accept(s, bad[i], &len));
        await(c, POLLIN);
        char b;
        say("%d", recv(c, &b, 1, 0) <= 0);
        close(c);
        c = dial(s);
        TRY(accept4(s, (struct sockaddr *)&a, bad[i], SOCK_CLOEXEC));
        close(c);
        TRY(connect(MUST(socket(AF_INET, SOCK_STREAM, 0)), bad[i], sizeof a));
    }
    dial(s);
    TRY(accept(s, (struct sockaddr *)&a, &negative));
    dial(s);
    TRY(accept(s, NULL, bad[0]) >= 0);
    dial(s);
    len = 0;
    TRY(accept(s, bad[0], &len) >= 0);
    say("%u", len);
}

int main(void) {
    own_and_shared(connection);
    accepted();
    /* A socket of another kind, beside accelerated ones. */
    int u[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    TRY(sendmsg(u[0], bad[0], 0));
    char b = 'x', control[8];
    struct iovec part = {&b, 1};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = bad[0], .msg_controllen = 24};
    TRY(sendmsg(u[0], &m, 0));
}
