// Command cmd starts the ferry service: one small web server for windows, boards and telephone.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"
)

const (
	defaultPort  = 7230
	readSeconds  = 6
	sheetsFolder = "sheets"
	boardRefresh = 20 * time.Second
	maxQuestions = 90 // per minute and client; windows have their own list and no limit
)

// requiredSheets must exist, or the service does not start.
var requiredSheets = []string{"prices.csv", "sailings_summer.csv", "sailings_winter.csv"}

// checkSheets returns the name of the first missing sheet, or an empty string.
func checkSheets(folder string) string {
	for _, name := range requiredSheets {
		if _, err := os.Stat(folder + "/" + name); err != nil {
			return name
		}
	}
	return ""
}

// alive answers the harbour office's question whether the service is up, with the word the
// caretaker's script looks for.
func alive(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	fmt.Fprintln(w, "afloat")
}

// board tells the boards on the piers how long to wait until the next question.
func board(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Refresh-Seconds", fmt.Sprint(int(boardRefresh.Seconds())))
	fmt.Fprintln(w, "pier", r.URL.Query().Get("pier"))
}

func main() {
	port := flag.Int("port", defaultPort, "port to listen on")
	folder := flag.String("sheets", sheetsFolder, "folder with the sheets")
	flag.Parse()
	if missing := checkSheets(*folder); missing != "" {
		log.Printf("sheet %s is missing", missing)
		os.Exit(12)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/alive", alive)
	mux.HandleFunc("/board", board)
	server := &http.Server{
		Addr:        fmt.Sprintf(":%d", *port),
		Handler:     mux,
		ReadTimeout: readSeconds * time.Second,
	}
	log.Printf("at most %d questions a minute", maxQuestions)
	log.Fatal(server.ListenAndServe())
}
