/* The completions of zero-copy sends. */
#include <linux/errqueue.h>

static int on = 1;

/* Waits for the completions of all sends up to one; the number of notifications does not matter. */
static void completed(int fd, unsigned last) {
    int named = 0;
    for (unsigned next = 0; next <= last;) {
        char control[200];
        struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
        if (!(await(fd, 0) & POLLERR)) continue;
        if (recvmsg(fd, &m, MSG_ERRQUEUE) == -1) continue;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        struct sock_extended_err *e = (void *)CMSG_DATA(c);
        if (!named++) say("level %d, type %d, %zu bytes, flags %x", c->cmsg_level, c->cmsg_type, c->cmsg_len, m.msg_flags);
        if (e->ee_origin != SO_EE_ORIGIN_ZEROCOPY) say("of another origin");
        if (e->ee_code != SO_EE_CODE_ZEROCOPY_COPIED) say("not copied");
        if (e->ee_errno) say("an error");
        next = e->ee_data + 1;
    }
    struct pollfd p = {.fd = fd};
    TRY(poll(&p, 1, 0));
    say("complete");
}

static int zerocopy(int fd) {
    int value = 0;
    socklen_t len = sizeof value;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &value, &len));
    return value;
}

static void option(int fd, int value) { TRY(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &value, sizeof value)); }

static void got(int fd, int count) {
    char buffer[100] = "";
    say("%ld %s", (long)recv(fd, buffer, count, MSG_WAITALL), buffer);
}

/* Whether a set reports an error within this time: other events do not count. */
static int error_in(int set, int ms) {
    struct epoll_event got[8];
    for (double end = seconds() + ms / 1e3;;) {
        int n = MUST(epoll_wait(set, got, 8, ms));
        for (int i = 0; i < n; i++)
            if (got[i].events & EPOLLERR) return (int)got[i].data.u32;
        if (n == 0 || seconds() > end) return 0;
    }
}

static int has_error(int set) { return error_in(set, 0); }
