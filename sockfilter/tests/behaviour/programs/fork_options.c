/* A connection that a parent and its child have keeps the options that were set on it, and takes new ones. */
#include "behaviour.h"

static void print_options(int fd, const char *name) {
    static const struct {
        int level, name;
        const char *what;
    } known[] = {
        {IPPROTO_TCP, TCP_NODELAY, "TCP_NODELAY"},
        {IPPROTO_TCP, TCP_KEEPIDLE, "TCP_KEEPIDLE"},
        {IPPROTO_TCP, TCP_KEEPINTVL, "TCP_KEEPINTVL"},
        {IPPROTO_TCP, TCP_KEEPCNT, "TCP_KEEPCNT"},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT"},
        {IPPROTO_IP, IP_TOS, "IP_TOS"},
        {SOL_SOCKET, SO_KEEPALIVE, "SO_KEEPALIVE"},
        {SOL_SOCKET, SO_TYPE, "SO_TYPE"},
        {SOL_SOCKET, SO_DOMAIN, "SO_DOMAIN"},
        {SOL_SOCKET, SO_PROTOCOL, "SO_PROTOCOL"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int value = -77;
        socklen_t len = sizeof value;
        int done = getsockopt(fd, known[i].level, known[i].name, &value, &len);
        say("%s: %s %d, %d in %u bytes", name, known[i].what, done, value, len);
    }
}

static void set(int fd, int level, int name, int value) {
    MUST(setsockopt(fd, level, name, &value, sizeof value));
}

int main(void) {
    struct ends e = ends();
    set(e.server, IPPROTO_TCP, TCP_NODELAY, 1);
    set(e.server, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    set(e.server, IPPROTO_TCP, TCP_KEEPINTVL, 6);
    set(e.server, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set(e.server, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(e.server, IPPROTO_IP, IP_TOS, 0x10);
    pid_t child = MUST(fork());
    if (child == 0) {
        print_options(e.server, "child");
        set(e.server, IPPROTO_TCP, TCP_USER_TIMEOUT, 2500);
        set(e.server, IPPROTO_TCP, TCP_KEEPIDLE, 90);
        int wrong = 1000;
        TRY(setsockopt(e.server, IPPROTO_TCP, TCP_KEEPCNT, &wrong, sizeof wrong));
        TRY(setsockopt(e.server, IPPROTO_TCP, 9999, &wrong, sizeof wrong));
        TRY(setsockopt(e.server, IPPROTO_TCP, TCP_NODELAY, NULL, 4));
        print_options(e.server, "child afterwards");
        return 0;
    }
    MUST(waitpid(child, NULL, 0));
    set(e.server, IPPROTO_TCP, TCP_USER_TIMEOUT, 1500);
    set(e.server, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    print_options(e.server, "parent");
}
