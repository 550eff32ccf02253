#!/bin/bash
# Every relative link and #anchor in the Markdown files of the repository leads somewhere, and so does every page of docs/ that a
# source names, and every path in ARCHITECTURE.md and CONTRIBUTING.md. docs/README.md leads to every page, and
# docs/decisions/README.md to every decision. Anchors are those of GitHub: the heading in lower case, without punctuation, spaces as
# hyphens.
set -euo pipefail
cd "$(dirname "$0")/../.."
git ls-files -z | perl -CSD -Mstrict -Mwarnings -MFile::Basename=dirname -0777 -e '
  my %tracked = map { $_ => 1 } split /\0/, <STDIN>;
  my (%folders, %anchors, %linked, $wrong);
  for (keys %tracked) { my $folder = $_; $folders{$folder} = 1 while ($folder = dirname($folder)) ne "." }
  sub content { my ($name) = @_; open(my $file, "<:encoding(UTF-8)", $name) or return ""; local $/; return scalar <$file> // "" }
  sub report { print STDERR "links: $_[0]\n"; $wrong = 1 }
  sub prose { my $text = content($_[0]); $text =~ s/^ *(```+|~~~+).*?^ *\1[ \t]*$/ "\n" x ($& =~ tr!\n!!) /gmse; return $text }
  sub anchors {
    my ($name) = @_;
    return $anchors{$name} if $anchors{$name};
    my (%found, %seen);
    for my $heading (prose($name) =~ /^#{1,6} +(.*?) *#*$/gm) {
      $heading =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;
      my $anchor = lc $heading;
      $anchor =~ s/[^\w\- ]//g;
      $anchor =~ s/ /-/g;
      my $number = $seen{$anchor}++;
      $found{$number ? "$anchor-$number" : $anchor} = 1;
    }
    return $anchors{$name} = \%found;
  }
  sub resolve {
    my @parts;
    for (split m!/!, $_[0]) { next if $_ eq "" or $_ eq "."; if ($_ eq "..") { @parts ? pop @parts : return } else { push @parts, $_ } }
    return join "/", @parts;
  }
  for my $page (sort grep { /\.md$/ } keys %tracked) {
    my $text = prose($page);
    $text =~ s/(`+)(?!`)(?:(?!\n\n).)*?(?<!`)\1(?!`)/ "\n" x ($& =~ tr!\n!!) /gse;
    while ($text =~ /\]\(\s*<?([^)\s>]+)|^\[[^\]]+\]:\s*(\S+)/gm) {
      my ($link, $line) = ($1 // $2, 1 + (substr($text, 0, $-[0]) =~ tr/\n//));
      next if $link =~ /^[a-z][a-z0-9+.-]*:/i;
      my ($path, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
      my $target = $path eq "" ? $page : resolve(dirname($page) . "/$path");
      if (!defined $target or $target ne "" && !$tracked{$target} && !$folders{$target}) { report("$page:$line: $link: no such file"); next }
      $linked{$page}{$target} = 1;
      report("$page:$line: $link: no such heading") if defined $anchor and $target =~ /\.md$/ and !anchors($target)->{$anchor};
    }
  }
  for my $page (sort grep { /^docs\/.*\.md$/ and !/README\.md$/ } keys %tracked) {
    my $index = $page =~ /^docs\/decisions\// ? "docs/decisions/README.md" : "docs/README.md";
    report("$index: $page is missing") unless $linked{$index}{$page} or $page eq "docs/notes/verified.md";
  }
  for my $page (grep { $tracked{$_} } "ARCHITECTURE.md", "CONTRIBUTING.md") {
    my $text = prose($page);
    while ($text =~ m!`([\w.-]+/[\w./-]+)`!g) {
      my ($path, $line) = ($1, 1 + (substr($text, 0, $-[0]) =~ tr/\n//));
      report("$page:$line: $path: no such file") unless $tracked{$path} or $folders{$path =~ s!/$!!r} or $path =~ /^(state_dir|target)\//;
    }
  }
  for my $source (sort grep { /(\.(rs|c|h|py|sh|ya?ml|toml|md)|Makefile)$/ } keys %tracked) {
    next if $source =~ /^(CHANGELOG\.md|docs\/notes\/)/;
    my $text = content($source);
    while ($text =~ m!\bdocs/[\w/-]+\.md\b!g) {
      my $line = 1 + (substr($text, 0, $-[0]) =~ tr/\n//);
      report("$source:$line: $&: no such page") unless $tracked{$&} or $& eq "docs/notes/verified.md"; # `make verify` writes it
    }
  }
  exit($wrong ? 1 : 0);
'
