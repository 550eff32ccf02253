/* Every way to send, with every flag, on a connection of one process and on a shared one. */
// differs: own MSG_OOB: 1 1 1 1 1 1 then n | own MSG_OOB: EOPNOTSUPP EOPNOTSUPP EOPNOTSUPP EOPNOTSUPP EOPNOTSUPP EOPNOTSUPP then n | the transport carries one stream and no second one beside it
// differs: shared MSG_OOB: 1 1 1 1 1 1 then n | shared MSG_OOB: EOPNOTSUPP EOPNOTSUPP EOPNOTSUPP EOPNOTSUPP EOPNOTSUPP EOPNOTSUPP then n | the transport carries one stream and no second one beside it
#include "shared.h"

enum { SEND, SENDTO, SENDTO_ADDRESS, SENDMSG, SENDMSG_ADDRESS, SENDMMSG, WAYS };
static const char *const way_names[] = {"send", "sendto", "sendto+address", "sendmsg", "sendmsg+address", "sendmmsg"};

static long sends(int way, int fd, const char *text, int flags) {
    struct sockaddr_in a = here(9);
    struct iovec part = {(char *)text, strlen(text)};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    if (way == SENDMSG_ADDRESS) m.msg_hdr.msg_name = &a, m.msg_hdr.msg_namelen = sizeof a;
    switch (way) {
    case SEND: return send(fd, text, strlen(text), flags);
    case SENDTO: return sendto(fd, text, strlen(text), flags, NULL, 0);
    case SENDTO_ADDRESS: return sendto(fd, text, strlen(text), flags, (struct sockaddr *)&a, sizeof a);
    case SENDMMSG: {
        int sent = sendmmsg(fd, &m, 1, flags);
        return sent == 1 ? (long)m.msg_len : sent;
    }
    default: return sendmsg(fd, &m.msg_hdr, flags);
    }
}

static const struct { int flags; const char *name; } known[] = {
    {0, "0"},
    {MSG_DONTWAIT, "MSG_DONTWAIT"},
    {MSG_NOSIGNAL, "MSG_NOSIGNAL"},
    {MSG_EOR, "MSG_EOR"},
    {MSG_CONFIRM, "MSG_CONFIRM"},
    {MSG_DONTROUTE, "MSG_DONTROUTE"},
    {MSG_PEEK | MSG_WAITALL | MSG_TRUNC | MSG_ERRQUEUE, "flags of receives"},
    {MSG_ZEROCOPY, "MSG_ZEROCOPY"},
    {MSG_MORE, "MSG_MORE"},
};

static void each(struct ends e, const char *who) {
    char got[8];
    for (size_t f = 0; f < sizeof known / sizeof *known; f++)
        for (int way = 0; way < WAYS; way++) {
            memset(got, 0, sizeof got);
            long sent = sends(way, e.client, "abc", known[f].flags);
            /* What MSG_MORE holds back leaves with the next. */
            if (known[f].flags & MSG_MORE) MUST(send(e.client, "", 0, 0)), MUST(setsockopt(e.client, IPPROTO_TCP, TCP_NODELAY, (int[]){1}, sizeof(int)));
            say("%s %s %s: %ld %s", who, way_names[way], known[f].name, sent, outcome(sent));
            if (sent > 0) drain(e.server, 0), MUST(recv(e.server, got, sent, MSG_WAITALL)), say("%s", got);
        }
}

/* Urgent bytes, then one that is not: on no connection is it lost. */
static void urgent(struct ends e, const char *who) {
    char line[200];
    int on = 1, at = sprintf(line, "%s MSG_OOB:", who);
    for (int way = 0; way < WAYS; way++) {
        long sent = sends(way, e.client, "u", MSG_OOB | MSG_NOSIGNAL);
        at += sent == -1 ? sprintf(line + at, " %s", outcome(sent)) : sprintf(line + at, " %ld", sent);
    }
    MUST(setsockopt(e.server, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    MUST(send(e.client, "n", 1, 0));
    char byte = 0;
    while (byte != 'n') MUST(recv(e.server, &byte, 1, 0));
    say("%s then %c", line, byte);
    TRY(recv(e.server, &byte, 1, MSG_DONTWAIT));
}

/* The socket has shut down: nothing can be sent. */
static void shut(struct ends e, const char *who) {
    MUST(shutdown(e.client, SHUT_WR));
    for (int way = 0; way < WAYS; way++) {
        long sent = sends(way, e.client, "abc", MSG_NOSIGNAL);
        say("%s %s after shutdown: %ld %s", who, way_names[way], sent, outcome(sent));
    }
}

int main(void) {
    own_and_shared(each);
    own_and_shared(urgent);
    own_and_shared(shut);
}
