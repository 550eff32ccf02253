/* A program that cleared its environment starts another one, which inherits no listener and is passed a connection later (Dovecot's
 * login process and its imap process). */
#include "behaviour.h"

enum { AT = 20 };

/* Passes or receives a descriptor. */
static int descriptor(int at, int passed) {
    char byte = 'p', room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (passed < 0) {
        MUST(recvmsg(at, &message, 0));
        return *(int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    *(int *)CMSG_DATA(header) = passed;
    return MUST(sendmsg(at, &message, 0));
}

static int serve(void) {
    int c = descriptor(AT, -1);
    char byte;
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    TRY(recv(c, &byte, 1, 0));
    TRY(getpeername(c, (struct sockaddr *)&peer, &len));
    TRY(peer.sin_family);
    TRY(send(c, &byte, 1, 0));
    return 0;
}

int main(int count, char **arguments) {
    if (count > 1) return serve();
    int s = listener(), pair[2], status;
    MUST(fcntl(s, F_SETFD, FD_CLOEXEC));
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(dup2(pair[1], AT));
        clearenv();
        execl("/proc/self/exe", "program", "serve", NULL);
        _exit(98);
    }
    struct ends e = ends_at(s);
    descriptor(pair[0], e.server);
    close(e.server);
    char byte = 'x';
    MUST(send(e.client, &byte, 1, 0));
    long got = recv(e.client, &byte, 1, 0);
    MUST(waitpid(child, &status, 0));
    TRY(status);
    TRY(got);
}
