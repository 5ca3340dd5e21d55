package migrate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	yamlnode "go.yaml.in/yaml/v3"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// document is one of a stream.
type document struct {
	source string
	// line is that in the source at which the document begins.
	line int
	text []byte
	// node is the mapping; nil in a document of comments alone.
	node *yamlnode.Node
	// root is what has node, and the comments around it.
	root                                *yamlnode.Node
	apiVersion, kind, namespace, object string
	// items are those of a List.
	items []document
}

var (
	separator = regexp.MustCompile(`(?m)^---(?:[ \t]*$|[ \t]+#.*$)\n?`)
	// directive is what may come before the first document, and is not kept.
	directive = regexp.MustCompile(`(?m)^(%YAML|\.\.\.)`)
)

// parse splits a stream. What is between two separators is kept as it is.
func parse(source Source) ([]document, error) {
	text := bytes.ReplaceAll(source.Text, []byte("\r\n"), []byte("\n"))
	if directive.Match(text) {
		return nil, BadInput{fmt.Errorf("%s has YAML directives (%%YAML, ...), which manifests do not need: remove them", source.Name)}
	}
	var documents []document
	line := 1
	for len(text) > 0 {
		part, rest := text, []byte(nil)
		skipped := 0
		if at := separator.FindIndex(text); at != nil {
			part, rest = text[:at[0]], text[at[1]:]
			skipped = bytes.Count(text[at[0]:at[1]], []byte("\n"))
		}
		if len(bytes.TrimSpace(part)) > 0 {
			d, err := parseDocument(source.Name, line, part)
			if err != nil {
				return nil, err
			}
			documents = append(documents, d)
		}
		line += bytes.Count(part, []byte("\n")) + skipped
		text = rest
	}
	return documents, nil
}

func parseDocument(source string, line int, text []byte) (document, error) {
	d := document{source: source, line: line, text: text}
	// First with the decoder that bounds what aliases may grow to.
	var value any
	if err := yaml.Unmarshal(text, &value); err != nil {
		return d, bad(source, line, "this is no manifest: %w", shortened(err))
	}
	object, is := value.(map[string]any)
	switch {
	case value == nil:
		return d, nil
	case !is:
		return d, bad(source, line, "this is no manifest: it is a list or a text, and no object with a kind")
	}
	var root yamlnode.Node
	if err := yamlnode.Unmarshal(text, &root); err != nil {
		return d, bad(source, line, "this is no YAML: %w", shortened(err))
	}
	d.root, d.node = &root, root.Content[0]
	d.apiVersion, d.kind = field(object, "apiVersion"), field(object, "kind")
	d.namespace = field(object, "metadata", "namespace")
	d.object = cmp.Or(field(object, "metadata", "name"), strings.TrimSuffix(field(object, "metadata", "generateName"), "-"))
	if d.kind == "List" && d.apiVersion == "v1" {
		return d, d.readItems()
	}
	return d, nil
}

// field is a text in a decoded object; empty where there is none.
func field(object map[string]any, path ...string) string {
	for _, key := range path[:len(path)-1] {
		object, _ = object[key].(map[string]any)
	}
	text, _ := object[path[len(path)-1]].(string)
	return text
}

// shortened has no line breaks and no prefix of the library.
func shortened(err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "error converting YAML to JSON: "), "error unmarshaling JSON: ")
	return fmt.Errorf("%s", strings.TrimPrefix(text, "while decoding JSON: "))
}

// name is Kind/name.
func (d document) name() string {
	if d.kind == "" {
		return d.source
	}
	return d.kind + "/" + d.object
}

// decode decodes strictly: a field that nobody knows may be a GPU that is not seen.
func (d document) decode(into any) error {
	if err := decodeStrictly(d.text, into); err != nil {
		return bad(d.source, d.line, "%s cannot be read: %w", d.name(), shortened(err))
	}
	return nil
}

// decodeStrictly names fields by their path.
func decodeStrictly(text []byte, into any) error {
	encoded, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	unknown, err := json.UnmarshalStrict(encoded, into)
	return errors.Join(append(unknown, err)...)
}

// readItems reads the items of a List, which are documents of their own.
func (d *document) readItems() error {
	expand(d.node)
	nodes := get(d.node, "items")
	if nodes == nil || nodes.Kind != yamlnode.SequenceNode {
		return bad(d.source, d.line, "a List needs items")
	}
	for i, node := range nodes.Content {
		text, err := encode(node)
		if err != nil {
			return bad(d.source, d.line, "items[%d]: %w", i, err)
		}
		item, err := parseDocument(d.source, d.line+node.Line-1, text)
		if err != nil {
			return err
		}
		if item.kind == "List" {
			return bad(d.source, d.line, "items[%d] is a List: give its items themselves", i)
		}
		d.items = append(d.items, item)
	}
	return nil
}

// encode writes a document that has changed, in its own style.
func (d document) encode() ([]byte, error) {
	text, err := encodeWith(d.root, compact(d.node))
	if err != nil {
		return nil, err
	}
	return withBlankLines(d.text, text), nil
}

// encode writes what is new.
func encode(object any) ([]byte, error) {
	node, isNode := object.(*yamlnode.Node)
	if isNode {
		return encodeWith(node, compact(node))
	}
	text, err := yaml.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	delete(fields, "status") // which others write
	if spec, is := fields["spec"].(map[string]any); is && reflect.DeepEqual(spec["metadata"], map[string]any{}) {
		delete(spec, "metadata")
	}
	return yaml.Marshal(fields)
}

func encodeWith(node *yamlnode.Node, compact bool) ([]byte, error) {
	var out bytes.Buffer
	encoder := yamlnode.NewEncoder(&out)
	encoder.SetIndent(2)
	if compact {
		encoder.CompactSeqIndent()
	}
	if err := encoder.Encode(node); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return out.Bytes(), nil
}

// compact tells whether the lists of a document stand below their keys without indentation, by the
// first list.
func compact(node *yamlnode.Node) bool {
	if node.Kind == yamlnode.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			if value.Kind == yamlnode.SequenceNode && value.Style&yamlnode.FlowStyle == 0 && value.Column > 0 {
				return value.Column <= key.Column
			}
			if value.Kind == yamlnode.MappingNode && hasList(value) {
				return compact(value)
			}
		}
	}
	return true
}

func hasList(node *yamlnode.Node) bool {
	if node.Kind == yamlnode.SequenceNode {
		return node.Style&yamlnode.FlowStyle == 0
	}
	for _, child := range node.Content {
		if hasList(child) {
			return true
		}
	}
	return false
}

// withBlankLines puts the blank lines of the old text back, which the library does not keep, where
// that changes no value.
func withBlankLines(old, text []byte) []byte {
	oldLines, at := strings.Split(string(old), "\n"), 0
	var out []string
	for _, line := range strings.Split(string(text), "\n") {
		for i := at; i < len(oldLines) && strings.TrimSpace(line) != ""; i++ {
			if strings.TrimSpace(oldLines[i]) != strings.TrimSpace(line) {
				continue
			}
			blank := 0
			for j := i - 1; j >= 0 && strings.TrimSpace(oldLines[j]) == ""; j-- {
				blank++
			}
			if len(out) > 0 && out[len(out)-1] != "" {
				out = append(out, make([]string, blank)...)
			}
			at = i + 1
			break
		}
		out = append(out, line)
	}
	spaced := []byte(strings.Join(out, "\n"))
	var before, after any
	if yaml.Unmarshal(text, &before) != nil || yaml.Unmarshal(spaced, &after) != nil || !reflect.DeepEqual(before, after) {
		return text
	}
	return spaced
}
