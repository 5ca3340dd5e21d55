package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// plainQuantity matches every quantity of a real node. Kubernetes' parser also accepts 1e-99999999, and does not return
// in reasonable time.
var plainQuantity = regexp.MustCompile(`^[+-]?[0-9.]{1,40}([eE][+-]?[0-9]{1,2}|[numkKMGTPE]?i?)$`)

// quantities are the keys below which every value is a quantity.
var quantities = []string{"allocatable", "capacity", "counters"}

// checkQuantities refuses quantities that must not reach Kubernetes' parser.
func checkQuantities(raw []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return walk(decoder, false)
}

// walk reads one value.
func walk(decoder *json.Decoder, quantity bool) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	switch token := token.(type) {
	case json.Delim:
		for decoder.More() {
			below := quantity
			if token == '{' {
				key, err := decoder.Token()
				if err != nil {
					return err
				}
				name, _ := key.(string)
				below = below || slices.ContainsFunc(quantities, func(q string) bool {
					return strings.EqualFold(q, name) // as encoding/json compares
				})
			}
			if err := walk(decoder, below); err != nil {
				return err
			}
		}
		_, err := decoder.Token() // its end
		return err
	case string:
		return checkQuantity(token, quantity)
	case json.Number:
		return checkQuantity(token.String(), quantity)
	}
	return nil
}

func checkQuantity(text string, quantity bool) error {
	if quantity && !plainQuantity.MatchString(text) {
		return fmt.Errorf("%.60q is no quantity that a node has", text)
	}
	return nil
}
