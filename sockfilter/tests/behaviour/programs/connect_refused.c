/* Nobody listens: refused, and the socket can be used again. */
#include "behaviour.h"

int main(void) {
    int b = bound(), c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in a = where(b);
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    int error = 5;
    socklen_t len = sizeof error;
    TRY(getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &len));
    say("%d", error);
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    MUST(listen(b, 4));
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    int s = TRY(accept(b, NULL, NULL) >= 0);
    TRY(send(c, "x", 1, 0));
}
