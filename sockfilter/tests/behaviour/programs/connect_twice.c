/* Connecting what is connected, listens, or is no address. */
#include "behaviour.h"

int main(void) {
    int s = listener();
    struct ends e = ends_at(s);
    struct sockaddr_in a = where(s);
    struct sockaddr_un { short family; char path[108]; } u = {AF_UNIX, "/nowhere"};
    TRY(connect(e.client, (struct sockaddr *)&a, sizeof a));
    TRY(connect(e.server, (struct sockaddr *)&a, sizeof a));
    TRY(connect(s, (struct sockaddr *)&a, sizeof a));
    int c = socket(AF_INET, SOCK_STREAM, 0);
    TRY(connect(c, (struct sockaddr *)&a, 3));
    TRY(connect(c, (struct sockaddr *)&u, sizeof u));
    TRY(connect(c, NULL, sizeof a));
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    TRY(listen(c, 1));
    TRY(bind(c, (struct sockaddr *)&a, sizeof a));
}
