package migrate

import (
	"slices"

	yamlnode "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// get finds a value by keys of mappings; nil where there is none.
func get(node *yamlnode.Node, keys ...string) *yamlnode.Node {
	for _, key := range keys {
		i := index(node, key)
		if i < 0 {
			return nil
		}
		node = node.Content[i+1]
	}
	return node
}

// index is that of a key in a mapping; -1 where there is none.
func index(node *yamlnode.Node, key string) int {
	if node == nil || node.Kind != yamlnode.MappingNode {
		return -1
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// remove takes a key out of a mapping. The comment above it goes with it.
func remove(node *yamlnode.Node, key string) {
	if i := index(node, key); i >= 0 {
		node.Content = slices.Delete(node.Content, i, i+2)
	}
}

// set gives a key of a mapping a value; a new key comes last.
func set(node *yamlnode.Node, key string, value any) {
	made := nodeOf(value)
	if node.Style&yamlnode.FlowStyle != 0 && len(node.Content) == 0 {
		node.Style = 0
	}
	if i := index(node, key); i >= 0 {
		node.Content[i+1] = made
		return
	}
	node.Content = append(node.Content, &yamlnode.Node{Kind: yamlnode.ScalarNode, Value: key}, made)
}

// add puts a value at the end of the list at a key, which is made where there is none.
func add(node *yamlnode.Node, key string, value any) {
	list := get(node, key)
	if list == nil || list.Kind != yamlnode.SequenceNode {
		set(node, key, []any{value})
		return
	}
	if len(list.Content) == 0 {
		list.Style = 0
	}
	list.Content = append(list.Content, nodeOf(value))
}

// nodeOf makes a node of a value that has JSON tags. Keys are sorted.
func nodeOf(value any) *yamlnode.Node {
	text, err := yaml.Marshal(value)
	var root yamlnode.Node
	if err == nil {
		err = yamlnode.Unmarshal(text, &root)
	}
	if err != nil || len(root.Content) == 0 {
		// Values are structs and maps of texts and numbers: nothing that a user gives leads here.
		return &yamlnode.Node{Kind: yamlnode.ScalarNode, Tag: "!!null"}
	}
	unplace(root.Content[0])
	return root.Content[0]
}

// unplace forgets where a node stood in another text.
func unplace(node *yamlnode.Node) {
	node.Line, node.Column = 0, 0
	for _, child := range node.Content {
		unplace(child)
	}
}

// expand writes aliases and merge keys out, so that a change is of one place alone. What they may
// grow to was bounded when the document was decoded.
func expand(node *yamlnode.Node) {
	node.Anchor = ""
	for i, child := range node.Content {
		if child.Kind == yamlnode.AliasNode {
			node.Content[i] = clone(child.Alias)
		}
		expand(node.Content[i])
	}
	if node.Kind != yamlnode.MappingNode {
		return
	}
	merged := node.Content
	node.Content = nil
	for i := 0; i+1 < len(merged); i += 2 {
		if merged[i].Tag != "!!merge" {
			node.Content = append(node.Content, merged[i], merged[i+1])
		}
	}
	for i := 0; i+1 < len(merged); i += 2 {
		if merged[i].Tag != "!!merge" {
			continue
		}
		maps := []*yamlnode.Node{merged[i+1]}
		if merged[i+1].Kind == yamlnode.SequenceNode {
			maps = merged[i+1].Content
		}
		for _, from := range maps {
			for j := 0; j+1 < len(from.Content); j += 2 {
				if index(node, from.Content[j].Value) < 0 {
					node.Content = append(node.Content, from.Content[j], from.Content[j+1])
				}
			}
		}
	}
}

func clone(node *yamlnode.Node) *yamlnode.Node {
	if node == nil {
		return nil
	}
	copied := *node
	copied.Content = make([]*yamlnode.Node, len(node.Content))
	for i, child := range node.Content {
		copied.Content[i] = clone(child)
	}
	return &copied
}
