/* listen without bind takes a port; listening again changes the backlog. */
#include "behaviour.h"

int main(void) {
    int s = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(listen(s, 5));
    say("port %d", where(s).sin_port != 0);
    TRY(listen(s, 10));
    struct sockaddr_in a = where(s);
    int c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    TRY(accept(s, NULL, NULL) >= 0);
    TRY(bind(s, (struct sockaddr *)&a, sizeof a));
    TRY(listen(s, 0));
    TRY(listen(s, -1));
}
