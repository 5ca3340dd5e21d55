package diagnosis

import (
	"regexp"
	"sync"
)

// redacted replaces what looks like a secret, for example in a flag or in the address of a proxy.
const redacted = "REDACTED"

const secretWords = `(?:token|passw(?:or)?d|secret|credential|api[-_]?key|authorization|private[-_]?key|cookie)`

// secretName matches the names of secret values. Patterns are compiled on use: the plugin, which
// is the same program, would keep them in memory.
var secretName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)` + secretWords + `s?$`) })

// redactors replace secrets in a text, in this order.
var redactors = sync.OnceValue(func() []func(string) string {
	replace := func(pattern, by string) func(string) string {
		form := regexp.MustCompile(pattern)
		return func(text string) string { return form.ReplaceAllString(text, by) }
	}
	return []func(string) string{
		replace(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`, redacted),
		replace(`\beyJ[\w-]+\.[\w-]+\.[\w-]*`, redacted),                // JSON Web Tokens (RFC 7519)
		replace(`\b(AKIA|ASIA)[0-9A-Z]{16}\b`, redacted),                // key IDs of AWS
		replace(`://[^/\s@]+@`, "://"+redacted+"@"),                     // user and password (RFC 3986, 3.2.1)
		replace(`(?i)\b(bearer|basic)\s+[\w.~+/=-]+`, "${1} "+redacted), // RFC 6750, RFC 7617
		replace(`(?i)([\w-]*`+secretWords+`["']?\s*[:=]\s*["']?)[^\s"',;&]+`, "${1}"+redacted),
	}
})

func redact(text string) string {
	for _, redactor := range redactors() {
		text = redactor(text)
	}
	return text
}

// withoutSecrets redacts a value that encoding/json has decoded.
func withoutSecrets(value any) any {
	switch value := value.(type) {
	case string:
		return redact(value)
	case []any:
		for i := range value {
			value[i] = withoutSecrets(value[i])
		}
	case map[string]any:
		shown := make(map[string]any, len(value))
		for name, content := range value {
			if text, isText := content.(string); isText && text != "" && secretName().MatchString(name) {
				content = redacted
			}
			shown[redact(name)] = withoutSecrets(content)
		}
		return shown
	}
	return value
}
