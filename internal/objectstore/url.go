package objectstore

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
)

// ErrURL is the error of a name that is no URL of an object.
var ErrURL = errors.New("not the URL of an object")

// IsURL reports whether a name is a URL, of any scheme. Other names are paths of the local file system.
func IsURL(name string) bool {
	scheme, _, ok := strings.Cut(name, "://")
	return ok && !strings.ContainsAny(scheme, `/\`)
}

// Schemes are the schemes of the supported stores.
func Schemes() []string { return slices.Clone(schemes) }

// Location is the parsed URL of an object, of a prefix, or of a pattern in the syntax of [path.Match].
type Location struct {
	Store   string // URL of the bucket with its parameters: scheme://bucket?name=value, sorted
	Key     string // of the object, or the literal beginning of the keys that the pattern matches
	Pattern string // "": none
}

// Parse parses scheme://bucket/key?parameters. The key of an object has no empty, "." and ".." segments. A key that ends with a slash is
// a prefix. A byte that is written as %XX has no meaning in a pattern. Equal objects have equal Locations.
func Parse(name string) (Location, error) {
	u, err := parseBucket(name)
	if err != nil {
		return Location{}, err
	}
	raw, _, _ := strings.Cut(strings.TrimPrefix(name, u.Scheme+"://"), "?")
	_, raw, _ = strings.Cut(raw, "/")
	key, pattern, isPattern, err := unescape(raw)
	if err != nil {
		return Location{}, fmt.Errorf("%s: %w: %w", name, ErrURL, err)
	}
	l := Location{Store: storeOf(u), Key: key}
	if isPattern {
		if _, err := path.Match(pattern, ""); err != nil {
			return Location{}, fmt.Errorf("%s: %w", name, err)
		}
		l.Pattern = pattern
	}
	//guard:object-key-is-clean
	if clean := path.Clean("/" + key); isPattern || key == "" || clean == "/"+strings.TrimSuffix(key, "/") {
		return l, nil
	}
	return Location{}, fmt.Errorf("%s: %w: expected a key without empty, %q and %q segments: correct the URL", name, ErrURL, ".", "..")
}

// parseBucket checks the parts of a URL other than its key.
func parseBucket(name string) (*url.URL, error) {
	scheme, rest, _ := strings.Cut(name, "://")
	bucket, _, _ := strings.Cut(rest, "/")
	bucket, _, _ = strings.Cut(bucket, "?")
	_, query, _ := strings.Cut(rest, "?")
	if strings.ContainsAny(query, "#") {
		return nil, fmt.Errorf("%s: %w: expected no %q", name, ErrURL, "#")
	}
	u := &url.URL{Scheme: scheme, Host: bucket, RawQuery: query}
	switch {
	case !slices.Contains(schemes, scheme):
		return nil, fmt.Errorf("%s: %w: expected a URL that begins with %s://", name, ErrURL, strings.Join(schemes, ":// or "))
	case bucket == "" || strings.ContainsAny(bucket, `*?[\#%`):
		return nil, fmt.Errorf("%s: %w: expected the name of a bucket after %s://, found %q", name, ErrURL, scheme, bucket)
	case strings.ContainsRune(bucket, '@'):
		return nil, fmt.Errorf("%s://...: %w: expected a URL without credentials: set them in the environment", scheme, ErrURL)
	}
	if _, err := url.ParseQuery(query); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", name, ErrURL, err)
	}
	return u, nil
}

func storeOf(u *url.URL) string {
	store := u.Scheme + "://" + u.Host
	if query := u.Query().Encode(); query != "" { // sorted
		store += "?" + query
	}
	return store
}

// meta are the characters with a meaning in a pattern.
const meta = `*?[\`

// unescape decodes the escaped part of a URL: to a key up to the first segment with a meta character, and to a pattern.
func unescape(raw string) (key, pattern string, isPattern bool, err error) {
	var k, p strings.Builder
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '%' {
			text, err := url.PathUnescape(raw[i:min(i+3, len(raw))])
			if err != nil {
				return "", "", false, err
			}
			c, i = text[0], i+2
			if strings.IndexByte(meta, c) >= 0 {
				p.WriteByte('\\')
			}
		} else if strings.IndexByte(meta, c) >= 0 {
			isPattern = true
		}
		if c == 0 {
			return "", "", false, errors.New("expected no zero byte")
		}
		p.WriteByte(c)
		if !isPattern {
			k.WriteByte(c)
		}
	}
	return k.String(), p.String(), isPattern, nil
}

// IsPrefix reports whether the URL stands for all objects below a prefix.
func (l Location) IsPrefix() bool {
	return l.Pattern == "" && (l.Key == "" || strings.HasSuffix(l.Key, "/"))
}

// Matches reports whether the URL stands for the object with a key. Like for files, a segment that begins with a dot is matched only by
// a pattern that has the dot.
func (l Location) Matches(key string) bool {
	switch {
	case strings.HasSuffix(key, "/"): // an empty object that tools create in place of a directory
		return false
	case l.IsPrefix():
		return strings.HasPrefix(key, l.Key) && !hidden(key[len(l.Key):], "")
	case l.Pattern == "":
		return key == l.Key
	}
	matched, _ := path.Match(l.Pattern, key)
	return matched && !hidden(key, l.Pattern)
}

// hidden reports whether a segment of key begins with a dot where the pattern has none.
func hidden(key, pattern string) bool {
	wanted := strings.Split(pattern, "/")
	for i, segment := range strings.Split(key, "/") {
		if strings.HasPrefix(segment, ".") && (i >= len(wanted) || !strings.HasPrefix(wanted[i], ".")) {
			return true
		}
	}
	return false
}

// At returns the Location of an object in the same bucket.
func (l Location) At(key string) Location { return Location{Store: l.Store, Key: key} }

// String returns the URL of the object. [Parse] of it returns l, if l is no pattern.
func (l Location) String() string {
	store, query, hasQuery := strings.Cut(l.Store, "?")
	var b strings.Builder
	b.WriteString(store)
	b.WriteByte('/')
	for i := range len(l.Key) {
		if c := l.Key[i]; c <= ' ' || c == 0x7f || strings.IndexByte(meta+"%#", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	if hasQuery {
		b.WriteByte('?')
		b.WriteString(query)
	}
	return b.String()
}

// Within reports whether all objects of l are below root: the same bucket with the same parameters, and a key that begins with all
// segments of the key of root.
func (l Location) Within(root Location) bool {
	prefix := strings.TrimSuffix(root.Key, "/")
	//guard:object-within-root
	return l.Store == root.Store && (prefix == "" || l.Key == prefix && l.Pattern == "" || strings.HasPrefix(l.Key, prefix+"/"))
}
