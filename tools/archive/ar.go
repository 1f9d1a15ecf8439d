package archive

import (
	"fmt"
	"io"
	"time"
)

// arMagic is the beginning of an ar archive.
const arMagic = "!<arch>\n"

// arNameMax is the maximum length of a member's name in the format that all readers know.
const arNameMax = 16

// Member is a file in an ar archive.
type Member struct {
	Name string
	Data []byte
}

// Ar writes an ar archive with its members in the given order, as Debian packages are.
func Ar(w io.Writer, members []Member, modified time.Time) error {
	if _, err := io.WriteString(w, arMagic); err != nil {
		return err
	}
	for _, m := range members {
		if len(m.Name) > arNameMax {
			return fmt.Errorf("member %s: its name is longer than %d bytes", m.Name, arNameMax)
		}
		// Name, time, user, group, mode and size, in columns.
		if _, err := fmt.Fprintf(w, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", m.Name, modified.Unix(), 0, 0, 0o100644, len(m.Data)); err != nil {
			return err
		}
		if _, err := w.Write(m.Data); err != nil {
			return err
		}
		// Members begin at even offsets.
		if len(m.Data)%2 == 1 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
	}
	return nil
}
