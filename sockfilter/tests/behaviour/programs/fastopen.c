/* A send that connects (MSG_FASTOPEN): as connect and send where no cookie is known, which is so on loopback. */
#include "behaviour.h"

int main(void) {
    int s = listener(), c = MUST(socket(AF_INET, SOCK_STREAM, 0)), server;
    struct sockaddr_in a = where(s), b;
    socklen_t len = sizeof b;
    char buffer[100] = "";
    TRY(sendto(c, "early", 5, MSG_FASTOPEN, (struct sockaddr *)&a, sizeof a));
    server = MUST(accept(s, NULL, NULL));
    TRY(recv(server, buffer, 5, MSG_WAITALL));
    say("%s", buffer);
    MUST(getpeername(c, (struct sockaddr *)&b, &len));
    say("%s", a.sin_port == b.sin_port ? "connected to it" : "to another one");
    TRY(sendto(c, "again", 5, MSG_FASTOPEN, (struct sockaddr *)&a, sizeof a));
    close(c), close(server);

    c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct iovec part = {"message", 7};
    struct msghdr m = {.msg_name = &a, .msg_namelen = sizeof a, .msg_iov = &part, .msg_iovlen = 1};
    TRY(sendmsg(c, &m, MSG_FASTOPEN));
    server = MUST(accept(s, NULL, NULL));
    TRY(recv(server, buffer, 7, MSG_WAITALL));
    say("%s", buffer);
    close(c), close(server);

    c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(sendto(c, "early", 5, MSG_FASTOPEN | MSG_DONTWAIT, (struct sockaddr *)&a, sizeof a));
    await(c, POLLOUT);
    TRY(send(c, "later", 5, 0));
    server = MUST(accept(s, NULL, NULL));
    TRY(recv(server, buffer, 5, MSG_WAITALL));
    say("%.5s", buffer);
    close(c), close(server);

    c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    nonblocking(c);
    struct mmsghdr mm = {.msg_hdr = m};
    TRY(sendmmsg(c, &mm, 1, MSG_FASTOPEN));
    await(c, POLLOUT);
    TRY(sendmmsg(c, &mm, 1, 0));
    server = MUST(accept(s, NULL, NULL));
    TRY(recv(server, buffer, 7, MSG_WAITALL));
    say("%.7s", buffer);
    close(c), close(server), close(s);

    c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(sendto(c, "nobody", 6, MSG_FASTOPEN | MSG_NOSIGNAL, (struct sockaddr *)&a, sizeof a));
    TRY(sendto(c, "nowhere", 7, MSG_FASTOPEN | MSG_NOSIGNAL, NULL, 0));
}
