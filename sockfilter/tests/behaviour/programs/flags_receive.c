/* Every way to receive, with every flag, on a connection of one process and on a shared one. */
#include "shared.h"

enum { RECV, RECVFROM, RECVFROM_ADDRESS, RECVMSG, RECVMSG_ADDRESS, RECVMMSG, WAYS };
static const char *const way_names[] = {"recv", "recvfrom", "recvfrom+address", "recvmsg", "recvmsg+address", "recvmmsg"};

static void receives(int way, int fd, int flags, const char *who, const char *flag) {
    char got[5] = "----";
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    struct iovec part = {got, 4};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    if (way == RECVMSG_ADDRESS) m.msg_hdr.msg_name = &a, m.msg_hdr.msg_namelen = sizeof a;
    long n;
    switch (way) {
    case RECV: n = recv(fd, got, 4, flags); break;
    case RECVFROM: n = recvfrom(fd, got, 4, flags, NULL, NULL); break;
    case RECVFROM_ADDRESS: n = recvfrom(fd, got, 4, flags, (struct sockaddr *)&a, &len); break;
    case RECVMMSG: n = recvmmsg(fd, &m, 1, flags, NULL), n = n == 1 ? (long)m.msg_len : n; break;
    default: n = recvmsg(fd, &m.msg_hdr, flags);
    }
    const char *error = outcome(n);
    say("%s %s %s: %ld %s %s, address %u %u, flags %x", who, way_names[way], flag, n, error, got, len,
        m.msg_hdr.msg_namelen, m.msg_hdr.msg_flags);
}

static const struct { int flags; const char *name; } known[] = {
    {0, "0"},
    {MSG_PEEK, "MSG_PEEK"},
    {MSG_TRUNC, "MSG_TRUNC"},
    {MSG_PEEK | MSG_TRUNC, "MSG_PEEK|MSG_TRUNC"},
    {MSG_WAITALL, "MSG_WAITALL"},
    {MSG_WAITALL | MSG_TRUNC, "MSG_WAITALL|MSG_TRUNC"},
    {MSG_DONTWAIT, "MSG_DONTWAIT"},
    {MSG_ERRQUEUE, "MSG_ERRQUEUE"},
    {MSG_OOB, "MSG_OOB"},
    {MSG_OOB | MSG_PEEK, "MSG_OOB|MSG_PEEK"},
    {MSG_CMSG_CLOEXEC, "MSG_CMSG_CLOEXEC"},
    {MSG_WAITFORONE, "MSG_WAITFORONE"},
    {MSG_NOSIGNAL, "MSG_NOSIGNAL"},
};
#define KNOWN (sizeof known / sizeof *known)

/* There are more bytes than room. */
static void full(struct ends e, const char *who) {
    char rest[8];
    for (size_t f = 0; f < KNOWN; f++)
        for (int way = 0; way < WAYS; way++) {
            MUST(send(e.client, "abcdef", 6, 0));
            arrived(e.server, 6);
            receives(way, e.server, known[f].flags, who, known[f].name);
            memset(rest, 0, sizeof rest);
            long n = recv(e.server, rest, sizeof rest, MSG_DONTWAIT);
            say("rest %ld %s", n, rest);
        }
    send(e.client, "abcdef", 6, 0);
    arrived(e.server, 6);
    TRY(recv(e.server, NULL, 3, MSG_TRUNC));
    TRY(recv(e.server, NULL, 2, MSG_TRUNC | MSG_PEEK));
    TRY(recv(e.server, NULL, 100, MSG_TRUNC | MSG_PEEK));
    TRY(recv(e.server, NULL, 100, MSG_TRUNC));
}

/* There are none. */
static void empty(struct ends e, const char *who) {
    for (size_t f = 0; f < KNOWN; f++)
        for (int way = 0; way < WAYS; way++) receives(way, e.server, known[f].flags | MSG_DONTWAIT, who, known[f].name);
}

/* There are a few, then the end. */
static void ending(struct ends e, const char *who) {
    send(e.client, "ab", 2, 0);
    MUST(shutdown(e.client, SHUT_WR));
    ended(e.server);
    for (int way = 0; way < WAYS; way++) receives(way, e.server, MSG_PEEK, who, "before the end");
    receives(RECV, e.server, MSG_WAITALL, who, "MSG_WAITALL before the end");
    for (size_t f = 0; f < KNOWN; f++)
        for (int way = 0; way < WAYS; way++) receives(way, e.server, known[f].flags, who, known[f].name);
}

/* Many bytes are thrown away. */
static void many(struct ends e, const char *who) {
    static char much[100000];
    MUST(send(e.client, much, sizeof much, 0));
    say("%s %ld", who, (long)recv(e.server, NULL, sizeof much, MSG_TRUNC | MSG_WAITALL));
    TRY(recv(e.server, much, 1, MSG_DONTWAIT));
}

int main(void) {
    own_and_shared(full);
    own_and_shared(empty);
    own_and_shared(ending);
    own_and_shared(many);
}
