#ifndef LEXER_H
#define LEXER_H
enum kind { END, NUMBER, NAME, SIGN };
struct token { enum kind kind; double number; char name[32]; char sign; };
struct lexer { const char *rest; struct token token; };
void next(struct lexer *lexer);
#endif
