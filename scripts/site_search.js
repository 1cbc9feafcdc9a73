// Make the search of the documentation site find flags that are typed with their dashes.
// Lunr reads a dash before a word as "pages without this word", so it finds nothing for --min-return. The quotes
// that replace the dashes request pages that contain every word of the flag.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const isQuery = typeof message?.data === "string";
  const quoted = (_, before, flag) => `${before}"${flag.replace(/[-"]+/g, " ").trim()}"`;
  const sent = isQuery ? { ...message, data: message.data.replace(/(^|\s)-+([^\s-]\S*)/g, quoted) } : message;
  return post.call(this, sent, ...rest);
};
